//! The dashboard's files over HTTP: the page of `dashboard/` and the reports of experiments, as of this build.
//!
//! For: `/` and everything below `/ui/`, with types, ETags and gzip. The files hold no figures and no secrets, so
//! any client may load them; the page gets its figures from the API, which checks access.
//! Not for: figures, tokens, changing anything.
//!
//! The only errors are an unknown path (404) and a method other than GET and HEAD (405).

#![forbid(unsafe_code)]

mod files;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use axum::Router;
use axum::body::Bytes;
use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;
use penstock_http::ProblemDetails;

use crate::files::{FILES, PICTURES, REPORTS};

/// Content security policy of the page: its own modules, requests to its own host. No inline script or style, no
/// `eval`, no frame, no form, no other origin. (Styles that scripts set on elements are not inline styles. The page
/// uses `blob:` URLs to export the map as a picture.)
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Content security policy of a picture opened by itself: inline styles, nothing else.
const PICTURE_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; sandbox";

/// Path below `/ui/` of the pictures of experiments.
const PICTURES_PATH: &str = "reports/";

/// Placeholder in the page for `modulepreload` links, so that the browser loads all modules at once.
const MODULES: &str = "<!--modules-->";

/// A file with its response headers.
#[derive(Debug)]
struct Asset {
    kind: &'static str,
    tag: HeaderValue,
    plain: Bytes,
    /// Compressed body, if that is shorter.
    gzip: Option<Bytes>,
}

/// Files by path below `/ui/`; the page itself is `index.html`.
static ASSETS: LazyLock<BTreeMap<String, Asset>> = LazyLock::new(|| {
    let asset = |path: String, bytes| (path.clone(), Asset::new(&path, Bytes::from_static(bytes)));
    let files = FILES.iter().map(|(path, bytes)| asset((*path).to_owned(), bytes));
    let pictures =
        PICTURES.iter().map(|(path, bytes)| asset(format!("{PICTURES_PATH}{path}"), bytes));
    let mut assets: BTreeMap<_, _> = files.chain(pictures).collect();
    assets.insert("index.html".to_owned(), Asset::new("index.html", page().into()));
    assets.insert("reports.json".to_owned(), Asset::new("reports.json", reports().into()));
    assets
});

impl Asset {
    fn new(path: &str, plain: Bytes) -> Self {
        let digest = digest(&SHA256, &plain);
        let tag: String = digest.as_ref()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let packed = encoder.write_all(&plain).and_then(|()| encoder.finish()).ok();
        Self {
            kind: kind(path),
            tag: HeaderValue::try_from(format!("\"{tag}\""))
                .unwrap_or(HeaderValue::from_static("\"\"")),
            gzip: packed.filter(|packed| packed.len() < plain.len()).map(Bytes::from),
            plain,
        }
    }
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("webp") => "image/webp",
        Some("jpg") => "image/jpeg",
        Some("json") => "application/json",
        _ => "text/plain; charset=utf-8",
    }
}

/// Returns `index.html` with a `modulepreload` link for each module.
fn page() -> String {
    let page = FILES.iter().find(|(path, _)| *path == "index.html").map_or(&b""[..], |file| file.1);
    let modules: String = FILES
        .iter()
        .filter(|(path, _)| path.ends_with(".js"))
        .map(|(path, _)| format!("<link rel=\"modulepreload\" href=\"/ui/{path}\">\n"))
        .collect();
    String::from_utf8_lossy(page).replace(MODULES, modules.trim_end())
}

/// `{"reports": [{"name", "title", "text", "pictures"}]}`; the title is the first heading, pictures are names of files
/// below `/ui/reports/NAME/`.
fn reports() -> String {
    let reports: Vec<_> = REPORTS
        .iter()
        .map(|(name, text)| {
            let title = text.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or(name);
            let pictures: Vec<&str> = PICTURES
                .iter()
                .filter_map(|(path, _)| path.strip_prefix(name)?.strip_prefix('/'))
                .collect();
            serde_json::json!({ "name": name, "title": title, "text": text, "pictures": pictures })
        })
        .collect();
    serde_json::json!({ "reports": reports }).to_string()
}

/// Routes of the page at `/` and of its files below `/ui/`.
pub fn router() -> Router {
    let page = |headers: HeaderMap| async move { answer("index.html", &headers) };
    let part = |Path(path): Path<String>, headers: HeaderMap| async move {
        // The page is at `/` alone, so that its links have one meaning.
        answer(if path == "index.html" { "" } else { &path }, &headers)
    };
    Router::new().route("/", get(page)).route("/ui/{*path}", get(part))
}

/// Returns true for paths of the dashboard, which need no token.
#[must_use]
pub fn is_dashboard_path(path: &str) -> bool {
    path == "/" || path.starts_with("/ui/")
}

fn answer(path: &str, asked: &HeaderMap) -> Response {
    let Some(asset) = ASSETS.get(path) else {
        let text = "the dashboard has no such file: load its page again, at /";
        return ProblemDetails::not_found(text).into_response();
    };
    let mut headers = HeaderMap::new();
    for (name, value) in [
        (header::CONTENT_TYPE, asset.kind),
        (
            header::CONTENT_SECURITY_POLICY,
            if path.starts_with(PICTURES_PATH) { PICTURE_POLICY } else { POLICY },
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Cached and revalidated each time: a new build shows at once.
        (header::CACHE_CONTROL, "no-cache"),
        (header::VARY, "accept-encoding"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(header::ETAG, asset.tag.clone());
    let known = asked.get(header::IF_NONE_MATCH).and_then(|tags| tags.to_str().ok());
    let tag = asset.tag.to_str().unwrap_or_default();
    if known.is_some_and(|tags| tags.split(',').any(|one| one.trim() == tag)) {
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    match &asset.gzip {
        Some(packed) if takes_gzip(asked) => {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            (headers, packed.clone()).into_response()
        }
        _ => (headers, asset.plain.clone()).into_response(),
    }
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    let codings =
        asked.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or("");
    codings.split(',').any(|one| {
        let mut words = one.split(';').map(str::trim);
        words.next().is_some_and(|coding| coding.eq_ignore_ascii_case("gzip"))
            && !words.any(|word| matches!(word, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"))
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::{Path, PathBuf};

    use axum::body::{Body, to_bytes};
    use axum::http::Request;
    use flate2::read::GzDecoder;
    use tower::ServiceExt;

    use super::*;

    async fn get(path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, Vec<u8>) {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        (head.status, head.headers, to_bytes(body, 1 << 24).await.unwrap().to_vec())
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn walk(folder: &Path, below: &str, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => walk(&entry.path(), &format!("{name}/"), found),
                false => found.push(name),
            }
        }
    }

    #[test]
    fn tables_list_all_files_and_reports() {
        let mut there = Vec::new();
        walk(&root().join("dashboard"), "", &mut there);
        let served = ["html", "js", "css", "svg", "txt"];
        there.retain(|path| served.iter().any(|end| path.ends_with(&format!(".{end}"))));
        there.sort();
        let mut known: Vec<_> = FILES.iter().map(|file| file.0.to_owned()).collect();
        known.sort();
        assert_eq!(known, there, "list the files of dashboard/ in services/dashboard/src/files.rs");

        let mut reports: Vec<_> = std::fs::read_dir(root().join("experiments"))
            .unwrap()
            .map(|entry| entry.unwrap())
            .filter(|entry| entry.path().join("results.md").exists())
            .map(|entry| entry.file_name().to_str().unwrap().to_owned())
            .collect();
        reports.sort();
        let known: Vec<_> = REPORTS.iter().map(|report| report.0).collect();
        assert_eq!(known, reports, "list the reports in services/dashboard/src/files.rs, by name");

        let mut pictures = Vec::new();
        walk(&root().join("experiments"), "", &mut pictures);
        let kinds = [".svg", ".png", ".webp", ".jpg"];
        pictures.retain(|path| kinds.iter().any(|kind| path.ends_with(kind)));
        pictures.sort();
        let known: Vec<_> = PICTURES.iter().map(|picture| picture.0).collect();
        assert_eq!(known, pictures, "list the pictures in services/dashboard/src/files.rs");
    }

    #[tokio::test]
    async fn pictures_of_experiments_are_served() {
        for (path, bytes) in PICTURES {
            let (status, headers, body) = get(&format!("/ui/reports/{path}"), &[]).await;
            assert_eq!((status, body.as_slice()), (StatusCode::OK, *bytes), "{path}");
            assert_eq!(headers[header::CONTENT_TYPE], "image/svg+xml");
            assert_eq!(headers[header::CONTENT_SECURITY_POLICY], PICTURE_POLICY);
        }
        let (_, _, body) = get("/ui/reports.json", &[]).await;
        let reports: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let listed = reports["reports"].as_array().unwrap().iter();
        let listed =
            listed.map(|report| report["pictures"].as_array().unwrap().len()).sum::<usize>();
        assert_eq!(listed, PICTURES.len(), "each picture belongs to a report");
    }

    #[test]
    fn vendored_files_match_their_checksums() {
        let sums = include_str!("../../../dashboard/vendor/SHA256SUMS");
        assert!(sums.lines().count() >= 7);
        for line in sums.lines() {
            let (sum, name) = line.split_once("  ").unwrap();
            let bytes = std::fs::read(root().join("dashboard/vendor").join(name)).unwrap();
            let found: String =
                digest(&SHA256, &bytes).as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, sum, "{name}: run dashboard/vendor/update.py");
        }
    }

    #[tokio::test]
    async fn page_preloads_only_own_modules() {
        let (status, headers, body) = get("/", &[]).await;
        let page = String::from_utf8(body).unwrap();
        assert_eq!(status, StatusCode::OK);
        assert_eq!(headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
        assert_eq!(headers[header::CONTENT_SECURITY_POLICY], POLICY);
        let modules = FILES.iter().filter(|file| file.0.ends_with(".js")).count();
        assert_eq!(page.matches("modulepreload").count(), modules);
        assert!(!page.contains("://") && !page.contains(MODULES), "{page}");
    }

    #[tokio::test]
    async fn files_support_gzip_and_etags() {
        for (path, bytes) in FILES.iter().filter(|file| file.0 != "index.html") {
            let path = format!("/ui/{path}");
            let (status, headers, plain) = get(&path, &[]).await;
            assert_eq!((status, plain.as_slice()), (StatusCode::OK, *bytes), "{path}");
            assert!(!headers.contains_key(header::CONTENT_ENCODING));
            let (_, packed, body) = get(&path, &[("accept-encoding", "br, gzip;q=0.8")]).await;
            if packed.contains_key(header::CONTENT_ENCODING) {
                let mut whole = Vec::new();
                GzDecoder::new(body.as_slice()).read_to_end(&mut whole).unwrap();
                assert_eq!(whole, *bytes, "{path}");
            }
            let tag = headers[header::ETAG].to_str().unwrap();
            let (status, _, body) =
                get(&path, &[("if-none-match", &format!("\"x\", {tag}"))]).await;
            assert_eq!((status, body.len()), (StatusCode::NOT_MODIFIED, 0), "{path}");
        }
        let (_, headers, _) = get("/ui/app.js", &[("accept-encoding", "gzip;q=0, identity")]).await;
        assert!(!headers.contains_key(header::CONTENT_ENCODING));
    }

    #[tokio::test]
    async fn unknown_path_is_404() {
        for path in ["/ui/none.js", "/ui/../Cargo.toml", "/ui/%2e%2e/Cargo.toml", "/ui/index.html"]
        {
            let (status, headers, body) = get(path, &[]).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
            assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json");
            assert!(String::from_utf8(body).unwrap().contains("load its page again"));
        }
    }

    #[tokio::test]
    async fn reports_have_names_titles_and_text() {
        let (_, _, body) = get("/ui/reports.json", &[]).await;
        let reports: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(reports["reports"].as_array().unwrap().len(), REPORTS.len());
        for report in reports["reports"].as_array().unwrap() {
            for field in ["name", "title", "text"] {
                assert!(!report[field].as_str().unwrap().is_empty(), "{report}");
            }
        }
    }
}
