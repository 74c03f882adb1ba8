//! Gradient-boosted trees from XGBoost's own JSON (`save_model`), for objectives whose prediction is the sum of the leaves.
//!
//! Format: doc/model.schema of XGBoost, as written by versions 2 and 3. A value below the condition of a node goes left, a
//! missing value where the node says. Sums are in `f32`, in the order of the trees, as XGBoost's. Trees with categories,
//! vectors in their leaves, or weights of trees (DART) are refused.

use serde::Deserialize;

/// Most trees of a model.
const TREES_MAX: usize = 10_000;

/// Most nodes of all trees.
const NODES_MAX: usize = 4_000_000;

/// Most features of a model.
pub(crate) const FEATURES_MAX: usize = 256;

/// Most outputs of a model.
const OUTPUTS_MAX: usize = 16;

/// Objectives without a transformation of the sum.
const OBJECTIVES: [&str; 4] =
    ["reg:quantileerror", "reg:squarederror", "reg:absoluteerror", "reg:pseudohubererror"];

/// A model that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TreeModelError {
    /// It is no JSON, or lacks a field.
    #[error("it is no model of XGBoost: {0}")]
    Json(#[from] serde_json::Error),
    /// It uses what this reader does not know.
    #[error("{what} {found:?} is not supported")]
    Unsupported {
        /// Part of the model.
        what: &'static str,
        /// Value that the model has there.
        found: String,
    },
    /// A count is above its limit.
    #[error("{what}: {count}, and at most {limit} are read")]
    TooMany {
        /// Counted part.
        what: &'static str,
        /// Count of the model.
        count: usize,
        /// Limit of this reader.
        limit: usize,
    },
    /// Its parts contradict each other.
    #[error("{what} of tree {tree} is damaged")]
    Damaged {
        /// Part that is wrong.
        what: &'static str,
        /// Number of the tree.
        tree: usize,
    },
    /// The head contradicts itself.
    #[error("{0} is damaged")]
    Head(&'static str),
}

/// Model of XGBoost as written.
#[derive(Deserialize)]
pub(crate) struct TreesFile {
    learner: Learner,
}

#[derive(Deserialize)]
struct Learner {
    gradient_booster: GradientBooster,
    learner_model_param: LearnerParam,
    objective: Objective,
}

#[derive(Deserialize)]
struct GradientBooster {
    name: String,
    model: TreesDocument,
}

#[derive(Deserialize)]
struct TreesDocument {
    trees: Vec<TreeDocument>,
    tree_info: Vec<usize>,
}

#[derive(Deserialize)]
struct LearnerParam {
    base_score: String,
    num_feature: String,
}

#[derive(Deserialize)]
struct Objective {
    name: String,
}

#[derive(Deserialize)]
struct TreeDocument {
    left_children: Vec<i64>,
    right_children: Vec<i64>,
    split_indices: Vec<usize>,
    split_conditions: Vec<f32>,
    default_left: Vec<Flag>,
    #[serde(default)]
    split_type: Vec<u8>,
    tree_param: TreeParam,
}

#[derive(Deserialize)]
struct TreeParam {
    #[serde(default)]
    size_leaf_vector: String,
}

/// XGBoost 1 writes booleans, later versions numbers.
#[derive(Deserialize)]
#[serde(untagged)]
enum Flag {
    Number(u8),
    Boolean(bool),
}

/// Node of a tree. A leaf has itself as children.
#[derive(Debug, Clone, Copy)]
struct TreeNode {
    /// Condition, or value of a leaf.
    value: f32,
    feature: u32,
    left: u32,
    right: u32,
    is_default_left: bool,
}

/// Nodes of one tree, from the root on.
#[derive(Debug)]
struct RegressionTree {
    nodes: Vec<TreeNode>,
    output: usize,
}

/// A sum of trees for each output.
#[derive(Debug)]
pub struct TreeModel {
    trees: Vec<RegressionTree>,
    base_scores: Vec<f32>,
    features: usize,
}

fn limited(what: &'static str, count: usize, limit: usize) -> Result<usize, TreeModelError> {
    if count > limit {
        return Err(TreeModelError::TooMany { what, count, limit });
    }
    Ok(count)
}

impl TreeModel {
    /// Reads a model of XGBoost.
    ///
    /// # Errors
    /// When it is no model, is above a limit, contradicts itself, or uses what is not supported.
    pub fn parse(json: &[u8]) -> Result<Self, TreeModelError> {
        Self::lower(serde_json::from_slice(json)?)
    }

    /// Checks the parts of a model against each other and the limits.
    pub(crate) fn lower(document: TreesFile) -> Result<Self, TreeModelError> {
        let Learner { gradient_booster, learner_model_param, objective } = document.learner;
        let unsupported = |what, found| Err(TreeModelError::Unsupported { what, found });
        if gradient_booster.name != "gbtree" {
            return unsupported("booster", gradient_booster.name);
        }
        if !OBJECTIVES.contains(&objective.name.as_str()) {
            return unsupported("objective", objective.name);
        }
        let head = |what| TreeModelError::Head(what);
        let features = learner_model_param.num_feature.parse().map_err(|_| head("num_feature"))?;
        limited("features", features, FEATURES_MAX)?;
        let TreesDocument { trees, tree_info } = gradient_booster.model;
        limited("trees", trees.len(), TREES_MAX)?;
        if tree_info.len() != trees.len() {
            return Err(head("tree_info"));
        }
        let base_scores = base_scores(&learner_model_param.base_score)?;
        let of_trees = tree_info.iter().max().map_or(1, |output| output.saturating_add(1));
        let outputs = limited("outputs", of_trees.max(base_scores.len()), OUTPUTS_MAX)?;
        // Older versions have one score for all outputs.
        let base_scores = match base_scores[..] {
            [score] => vec![score; outputs],
            _ if base_scores.len() == outputs => base_scores,
            _ => return Err(head("base_score")),
        };
        let nodes = trees.iter().map(|tree| tree.left_children.len()).sum();
        limited("nodes", nodes, NODES_MAX)?;
        let numbered = trees.into_iter().zip(tree_info).enumerate();
        let trees = numbered.map(|(tree, (document, output))| {
            Ok(RegressionTree { nodes: nodes_of(tree, &document, features)?, output })
        });
        let trees = trees.collect::<Result<_, TreeModelError>>()?;
        Ok(Self { trees, base_scores, features })
    }

    /// Number of features that conditions may name.
    #[must_use]
    pub fn features(&self) -> usize {
        self.features
    }

    /// Number of sums that a prediction has.
    #[must_use]
    pub fn outputs(&self) -> usize {
        self.base_scores.len()
    }

    /// Outputs for features, of which missing ones are NaN, as are those beyond the end of `features`.
    #[must_use]
    pub fn predict(&self, features: &[f32]) -> Vec<f32> {
        let mut sums = self.base_scores.clone();
        for tree in &self.trees {
            sums[tree.output] += leaf_value(&tree.nodes, features);
        }
        sums
    }
}

fn leaf_value(nodes: &[TreeNode], features: &[f32]) -> f32 {
    let mut at = 0;
    loop {
        let node = nodes[at];
        if node.left as usize == at {
            return node.value;
        }
        let value = features.get(node.feature as usize).copied().unwrap_or(f32::NAN);
        let goes_left = if value.is_nan() { node.is_default_left } else { value < node.value };
        at = if goes_left { node.left } else { node.right } as usize;
    }
}

/// One score, or a list of them in brackets.
fn base_scores(text: &str) -> Result<Vec<f32>, TreeModelError> {
    let damaged = TreeModelError::Head("base_score");
    let list = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    limited("outputs", list.split(',').count(), OUTPUTS_MAX)?;
    let scores = list.split(',').map(|score| score.trim().parse::<f32>());
    let scores =
        scores.collect::<Result<Vec<_>, _>>().map_err(|_| TreeModelError::Head("base_score"))?;
    scores.iter().all(|score| score.is_finite()).then_some(scores).ok_or(damaged)
}

/// Checks that the nodes are a tree: from the root each node is reached at most once. Nodes that are not reached are those
/// that XGBoost has pruned.
fn nodes_of(
    tree: usize,
    document: &TreeDocument,
    features: usize,
) -> Result<Vec<TreeNode>, TreeModelError> {
    let damaged = |what| TreeModelError::Damaged { what, tree };
    let TreeDocument {
        left_children,
        right_children,
        split_indices,
        split_conditions,
        default_left,
        split_type,
        tree_param,
    } = document;
    let count = left_children.len();
    let lengths =
        [right_children.len(), split_indices.len(), split_conditions.len(), default_left.len()];
    if count == 0 || lengths.iter().any(|length| *length != count) {
        return Err(damaged("the number of nodes"));
    }
    if split_type.iter().any(|kind| *kind != 0) {
        let (what, found) = ("type of a split", "categorical".to_owned());
        return Err(TreeModelError::Unsupported { what, found });
    }
    if !matches!(tree_param.size_leaf_vector.as_str(), "" | "0" | "1") {
        let (what, found) = ("size of a leaf", tree_param.size_leaf_vector.clone());
        return Err(TreeModelError::Unsupported { what, found });
    }
    let leaf = |at: usize| TreeNode {
        value: split_conditions[at],
        feature: 0,
        left: at as u32,
        right: at as u32,
        is_default_left: true,
    };
    let mut nodes: Vec<_> = (0..count).map(leaf).collect();
    let mut is_reached = vec![false; count];
    let mut open = vec![0];
    while let Some(at) = open.pop() {
        if std::mem::replace(&mut is_reached[at], true) {
            return Err(damaged("a child"));
        }
        if !split_conditions[at].is_finite() {
            return Err(damaged("a condition"));
        }
        let (left, right) = (left_children[at], right_children[at]);
        if left == -1 && right == -1 {
            continue;
        }
        let child = |number: i64| {
            usize::try_from(number).ok().filter(|child| *child < count).ok_or(damaged("a child"))
        };
        let (left, right) = (child(left)?, child(right)?);
        if split_indices[at] >= features {
            return Err(damaged("a feature"));
        }
        nodes[at] = TreeNode {
            feature: split_indices[at] as u32,
            left: left as u32,
            right: right as u32,
            is_default_left: match default_left[at] {
                Flag::Number(number) => number != 0,
                Flag::Boolean(is_left) => is_left,
            },
            ..nodes[at]
        };
        open.extend([left, right]);
    }
    Ok(nodes)
}
