//! Ratchets on the language of the code: counts of names and comments that the style guide rejects, which may only fall.
//!
//! The committed counts are in `xtask/language.toml`. A count above its limit is a fault; `cargo xtask tidy --lower`
//! writes the present counts where they are lower, and `cargo xtask tidy --list RULE` prints every place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::TidyFault;

/// File of the committed counts, relative to the root.
const LIMITS_FILE: &str = "xtask/language.toml";

/// First words of doc comments that are questions instead of descriptions.
const QUESTION_WORDS: [&str; 9] =
    ["what", "who", "whoever", "whether", "nobody", "how", "which", "where", "why"];
/// Public items need more words than this, or none where the name says it all.
const DOC_WORDS_SHORT: usize = 3;
/// Longest name of a test, in words.
const TEST_NAME_WORDS_MAX: usize = 6;
/// Words in function names that should be send, report or receive.
const SPEECH_WORDS: [&str; 6] = ["tell", "tells", "told", "hear", "hears", "heard"];
/// Type names that may occur in several crates or modules.
const SHARED_TYPE_NAMES: [&str; 10] = [
    "Args", "Builder", "Config", "Counts", "Error", "Iter", "Options", "Report", "Result", "Stats",
];

/// A rule that is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LanguageRule {
    QuestionDocComments,
    ShortDocComments,
    LongTestNames,
    OneWordConstants,
    RepeatedTypeNames,
    SpeechFunctions,
}

impl LanguageRule {
    const ALL: [Self; 6] = [
        Self::QuestionDocComments,
        Self::ShortDocComments,
        Self::LongTestNames,
        Self::OneWordConstants,
        Self::RepeatedTypeNames,
        Self::SpeechFunctions,
    ];

    fn key(self) -> &'static str {
        match self {
            Self::QuestionDocComments => "question_doc_comments",
            Self::ShortDocComments => "short_doc_comments",
            Self::LongTestNames => "long_test_names",
            Self::OneWordConstants => "one_word_constants",
            Self::RepeatedTypeNames => "repeated_type_names",
            Self::SpeechFunctions => "speech_functions",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::QuestionDocComments => {
                "begin a doc comment with a noun or a verb in the third person, not with What, Who or Whether"
            }
            Self::ShortDocComments => {
                "a doc comment of a public item says more than its name: shape, unit, range, source"
            }
            Self::LongTestNames => {
                "name a test by subject, condition and result, in at most six words"
            }
            Self::OneWordConstants => "name the thing, the limit and the unit of a constant",
            Self::RepeatedTypeNames => {
                "a type name has one meaning in the workspace: say what it is of"
            }
            Self::SpeechFunctions => "programs send, report and receive: name the function so",
        }
    }
}

/// A place that breaks a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: PathBuf,
    line: usize,
    text: String,
}

type Places = BTreeMap<LanguageRule, Vec<Violation>>;

pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Vec<TidyFault>> {
    let limits = read_limits(root)?;
    let mut faults = Vec::new();
    for (rule, places) in collect(root, files)? {
        let limit = limits.get(rule.key()).copied().unwrap_or(0);
        if places.len() <= limit {
            continue;
        }
        let message = format!(
            "{} of {}, {limit} allowed: {} (`cargo xtask tidy --list {0}` prints them)",
            rule.key(),
            places.len(),
            rule.advice()
        );
        faults.push(TidyFault { path: LIMITS_FILE.into(), line: 0, message });
    }
    Ok(faults)
}

/// Every place that breaks the rule called `key`, one line each.
pub fn list(root: &Path, key: &str) -> Result<Vec<String>> {
    let Some(rule) = LanguageRule::ALL.into_iter().find(|rule| rule.key() == key) else {
        let known: Vec<_> = LanguageRule::ALL.iter().map(|rule| rule.key()).collect();
        bail!("no rule `{key}`: the rules are {}", known.join(", "));
    };
    let places = collect(root, &super::checkout_files(root)?)?.remove(&rule).unwrap_or_default();
    let line =
        |place: Violation| format!("{}:{}: {}", place.path.display(), place.line, place.text);
    Ok(places.into_iter().map(line).collect())
}

/// Commits to the present counts where they are lower; returns the new limits.
pub fn lower(root: &Path) -> Result<BTreeMap<String, usize>> {
    let mut limits = read_limits(root)?;
    for (rule, places) in collect(root, &super::checkout_files(root)?)? {
        let limit = limits.entry(rule.key().to_owned()).or_insert(usize::MAX);
        *limit = places.len().min(*limit);
    }
    let mut text =
        "# Counts of names and comments that the style guide rejects: they may only fall.\n\
                    # `cargo xtask tidy --lower` writes this file.\n"
            .to_owned();
    for (key, limit) in &limits {
        text += &format!("{key} = {limit}\n");
    }
    std::fs::write(root.join(LIMITS_FILE), text)?;
    Ok(limits)
}

fn read_limits(root: &Path) -> Result<BTreeMap<String, usize>> {
    match std::fs::read_to_string(root.join(LIMITS_FILE)) {
        Ok(text) => toml::from_str(&text).with_context(|| format!("cannot read {LIMITS_FILE}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {LIMITS_FILE}")),
    }
}

fn collect(root: &Path, files: &[PathBuf]) -> Result<Places> {
    let mut places: Places = LanguageRule::ALL.into_iter().map(|rule| (rule, Vec::new())).collect();
    let mut types: BTreeMap<String, Vec<Violation>> = BTreeMap::new();
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let text = std::fs::read_to_string(root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let Ok(file) = syn::parse_file(&text) else {
            bail!("{}: not Rust that can be parsed", path.display());
        };
        let mut reader = Reader { path, places: &mut places, types: &mut types, in_test: false };
        reader.in_test = is_test_file(path);
        reader.doc(&file.attrs, false, file.span().start().line);
        reader.visit_file(&file);
    }
    let repeated = places.entry(LanguageRule::RepeatedTypeNames).or_default();
    for (_, mut same) in types.into_iter().filter(|(_, same)| same.len() > 1) {
        repeated.append(&mut same);
    }
    for list in places.values_mut() {
        list.sort();
    }
    Ok(places)
}

/// Types of tests may have any name.
fn is_test_file(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "tests")
        || path.file_stem().is_some_and(|stem| stem == "tests")
}

struct Reader<'a> {
    path: &'a Path,
    places: &'a mut Places,
    types: &'a mut BTreeMap<String, Vec<Violation>>,
    in_test: bool,
}

impl Reader<'_> {
    fn note(&mut self, rule: LanguageRule, line: usize, text: impl Into<String>) {
        let place = Violation { path: self.path.to_owned(), line, text: text.into() };
        self.places.entry(rule).or_default().push(place);
    }

    /// Judges the doc comment among `attributes` of an item at `line`.
    fn doc(&mut self, attributes: &[syn::Attribute], is_public: bool, line: usize) {
        let text = doc_text(attributes);
        let Some(first) = words(&text).next() else { return };
        if QUESTION_WORDS.contains(&first.to_lowercase().as_str()) {
            self.note(LanguageRule::QuestionDocComments, line, text.clone());
        }
        if is_public && words(&text).count() <= DOC_WORDS_SHORT {
            self.note(LanguageRule::ShortDocComments, line, text);
        }
    }

    fn item(&mut self, attributes: &[syn::Attribute], visibility: &syn::Visibility, line: usize) {
        self.doc(attributes, !matches!(visibility, syn::Visibility::Inherited), line);
    }

    fn function(&mut self, attributes: &[syn::Attribute], name: &syn::Ident) {
        let (line, name) = (name.span().start().line, name.to_string());
        let is_test = attributes.iter().any(|attribute| {
            attribute.path().segments.last().is_some_and(|last| last.ident == "test")
        });
        if is_test && name.split('_').count() > TEST_NAME_WORDS_MAX {
            self.note(LanguageRule::LongTestNames, line, name.clone());
        }
        if !is_test && name.split('_').any(|word| SPEECH_WORDS.contains(&word)) {
            self.note(LanguageRule::SpeechFunctions, line, name);
        }
    }

    fn constant(&mut self, name: &syn::Ident, kind: &syn::Type) {
        let (line, name) = (name.span().start().line, name.to_string());
        if !name.contains('_') && is_numeric(kind) {
            self.note(LanguageRule::OneWordConstants, line, name);
        }
    }

    /// Reads the names and doc comments of functions and types in a macro whose body is not plain Rust.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut attributes: Vec<syn::Attribute> = Vec::new();
        let mut is_public = false;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match &token {
                TokenTree::Punct(punct) if punct.as_char() == '#' => {
                    if let Some(TokenTree::Group(group)) = tokens.peek() {
                        let attribute: TokenStream =
                            [token.clone(), TokenTree::Group(group.clone())].into_iter().collect();
                        let parsed = syn::Attribute::parse_outer.parse2(attribute);
                        attributes.extend(parsed.unwrap_or_default());
                    }
                }
                TokenTree::Ident(word) if word == "pub" => is_public = true,
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    let Some(TokenTree::Ident(name)) = tokens.peek() else { continue };
                    match word.as_str() {
                        "fn" => self.function(&attributes, name),
                        "struct" | "enum" | "trait" | "type" => self.type_name(name),
                        _ => continue,
                    }
                    self.doc(&attributes, is_public, name.span().start().line);
                    attributes.clear();
                    is_public = false;
                }
                _ => {}
            }
        }
    }

    fn type_name(&mut self, name: &syn::Ident) {
        let (line, name) = (name.span().start().line, name.to_string());
        if !self.in_test && !SHARED_TYPE_NAMES.contains(&name.as_str()) {
            let place = Violation { path: self.path.to_owned(), line, text: name.clone() };
            self.types.entry(name).or_default().push(place);
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        self.type_name(&item.ident);
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        self.type_name(&item.ident);
        visit::visit_item_enum(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        self.type_name(&item.ident);
        visit::visit_item_trait(self, item);
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        self.type_name(&item.ident);
        visit::visit_item_type(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.item(&item.attrs, &item.vis, item.sig.ident.span().start().line);
        self.function(&item.attrs, &item.sig.ident);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.item(&item.attrs, &item.vis, item.sig.ident.span().start().line);
        self.function(&item.attrs, &item.sig.ident);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.doc(&item.attrs, true, item.sig.ident.span().start().line);
        self.function(&item.attrs, &item.sig.ident);
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        self.constant(&item.ident, &item.ty);
        visit::visit_item_const(self, item);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        self.constant(&item.ident, &item.ty);
        visit::visit_impl_item_const(self, item);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        visit::visit_item_static(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.item(&item.attrs, &item.vis, item.ident.span().start().line);
        let was = self.in_test;
        self.in_test |= item.ident == "tests";
        visit::visit_item_mod(self, item);
        self.in_test = was;
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        // The rules of `macro_rules!` define items that its uses name.
        if item.ident.is_some() {
            return;
        }
        match syn::parse2::<MacroItems>(item.mac.tokens.clone()) {
            Ok(MacroItems(items)) => {
                let mut reader = Reader {
                    path: self.path,
                    places: self.places,
                    types: self.types,
                    in_test: self.in_test,
                };
                items.iter().for_each(|item| reader.visit_item(item));
            }
            Err(_) => self.tokens(item.mac.tokens.clone()),
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.item(&field.attrs, &field.vis, field.span().start().line);
        visit::visit_field(self, field);
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.doc(&variant.attrs, false, variant.ident.span().start().line);
        visit::visit_variant(self, variant);
    }
}

/// Body of a macro that consists of items.
struct MacroItems(Vec<syn::Item>);

impl syn::parse::Parse for MacroItems {
    fn parse(input: syn::parse::ParseStream<'_>) -> syn::Result<Self> {
        let mut items = Vec::new();
        while !input.is_empty() {
            items.push(input.parse()?);
        }
        Ok(Self(items))
    }
}

/// The first paragraph of the doc comment among `attributes`.
fn doc_text(attributes: &[syn::Attribute]) -> String {
    let lines = attributes.iter().filter(|attribute| attribute.path().is_ident("doc"));
    let lines = lines.filter_map(|attribute| match &attribute.meta {
        syn::Meta::NameValue(pair) => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let first: Vec<String> = lines.take_while(|line| !line.trim().is_empty()).collect();
    first.join(" ").trim().to_owned()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '\'')).filter(|w| !w.is_empty())
}

/// Numbers, durations, and arrays, slices and tuples of them.
fn is_numeric(kind: &syn::Type) -> bool {
    const NUMERIC: [&str; 15] = [
        "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize",
        "f32", "f64", "Duration",
    ];
    match kind {
        syn::Type::Path(path) => {
            let last = path.path.segments.last().map(|segment| segment.ident.to_string());
            last.is_some_and(|last| NUMERIC.contains(&last.as_str()))
        }
        syn::Type::Array(array) => is_numeric(&array.elem),
        syn::Type::Slice(slice) => is_numeric(&slice.elem),
        // Byte strings are text.
        syn::Type::Reference(reference) => {
            !is_bytes(&reference.elem) && is_numeric(&reference.elem)
        }
        syn::Type::Tuple(tuple) => tuple.elems.iter().any(is_numeric),
        _ => false,
    }
}

fn is_bytes(kind: &syn::Type) -> bool {
    let element = match kind {
        syn::Type::Array(array) => &array.elem,
        syn::Type::Slice(slice) => &slice.elem,
        _ => return false,
    };
    matches!(&**element, syn::Type::Path(path) if path.path.is_ident("u8"))
}

/// Names of all rules, for help.
#[must_use]
pub fn rules() -> BTreeSet<&'static str> {
    LanguageRule::ALL.iter().map(|rule| rule.key()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> BTreeMap<&'static str, usize> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a.rs"), text).unwrap();
        let places = collect(dir.path(), &["a.rs".into()]).unwrap();
        let counts = places.into_iter().map(|(rule, list)| (rule.key(), list.len()));
        counts.filter(|(_, count)| *count > 0).collect()
    }

    #[test]
    fn each_rule_finds_its_fault() {
        for (text, rule) in [
            ("/// What it is for.\nfn f() {}", "question_doc_comments"),
            ("//! Whether it runs.\nfn f() {}", "question_doc_comments"),
            ("/// Its name.\npub fn f() {}", "short_doc_comments"),
            ("struct A { /// Its name.\n pub name: String }", "short_doc_comments"),
            ("#[test]\nfn a_b_c_d_e_f_g() {}", "long_test_names"),
            ("const MOST: usize = 3;", "one_word_constants"),
            ("const TIMES: [Duration; 1] = [X];", "one_word_constants"),
            ("const TIMES: &[u16] = &[1];", "one_word_constants"),
            ("const TIMES: (&str, u8) = (\"\", 1);", "one_word_constants"),
            ("/// Which one.\nfn f() {}", "question_doc_comments"),
            (
                "wire_struct! { pub struct A { /// Its name.\n pub name: String } }",
                "short_doc_comments",
            ),
            ("proptest! { #[test] fn a_b_c_d_e_f_g(x in 0..3) {} }", "long_test_names"),
            ("records! { /// Its name.\n pub struct A: 3 }", "short_doc_comments"),
            ("fn tell_client() {}", "speech_functions"),
        ] {
            assert_eq!(count(text), [(rule, 1)].into(), "{text}");
        }
        assert_eq!(
            count(
                "mod a { struct A; }\nmod b { enum A {} }\nwire! { struct A {} }\nrow! { struct A: 3 }"
            ),
            [("repeated_type_names", 4)].into()
        );
    }

    #[test]
    fn good_names_pass() {
        let text = "//! A parser.\n/// Parses a frame of at most 64 KiB.\npub fn parse() {}\n\
            /// Its name.\nfn private() {}\n#[test]\nfn a_b_c_d_e_f() {}\nconst FRAME_BYTES_MAX: usize = 1;\n\
            const NAME: &str = \"\";\nconst TEXT: &[u8] = b\"\";\nmod a { struct Error; }\nmod b { struct Error; }\n\
            mod tests { struct X; }\nstruct X;";
        assert_eq!(count(text), BTreeMap::new());
    }

    #[test]
    fn counts_may_only_fall() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir(root.join("xtask")).unwrap();
        let faults = |text: &str| {
            std::fs::write(root.join("a.rs"), text).unwrap();
            check(root, &["a.rs".into()]).unwrap().len()
        };
        assert_eq!(faults("const MOST: u8 = 1; const LEAST: u8 = 1;"), 1);
        lower(root).unwrap();
        assert_eq!(faults("const MOST: u8 = 1; const LEAST: u8 = 1;"), 0);
        assert_eq!(faults("const MOST: u8 = 1;"), 0);
        lower(root).unwrap();
        assert_eq!(faults("const MOST: u8 = 1; const LEAST: u8 = 1;"), 1);
        assert_eq!(list(root, "one_word_constants").unwrap().len(), 2);
        assert!(list(root, "none").is_err());
    }
}
