//! A thousand random cases. The seed of a failure repeats it: `model_case(SEED)`.

use penstock_transfer_model::model_cases;

#[test]
fn thousand_cases_keep_floors() {
    let summary = model_cases(0..1000);
    assert!(summary.over_default_min.1 >= 0.98, "{summary:?}");
    assert_eq!(summary.late, 0, "{summary:?}");
    assert!(summary.steady_097 >= 0.89, "{summary:?}");
    assert!(summary.steady_min >= 0.90, "{summary:?}");
}
