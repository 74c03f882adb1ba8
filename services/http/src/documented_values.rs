//! Enumerations and tags in the OpenAPI documents of roles.
//!
//! Fields with a fixed set of texts are texts in the types of handlers, as their values come from the cores. Their values
//! are added here, by the name of schema and field.

use utoipa::openapi::path::{Operation, PathItem};
use utoipa::openapi::schema::{ArrayItems, Schema};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{OpenApi, RefOr};

/// Values of a field: name of the schema, name of the field, values.
pub type FieldValues<'a> = (&'a str, &'a str, &'a [&'a str]);

/// Lists the values of fields.
///
/// # Panics
/// When the document has no such field, or the field is no text: a wrong entry, which a test finds.
pub fn list_values(document: &mut OpenApi, fields: &[FieldValues<'_>]) {
    let Some(components) = &mut document.components else { return };
    for (schema, field, values) in fields {
        let found = match components.schemas.get_mut(*schema) {
            Some(RefOr::T(Schema::Object(object))) => object.properties.get_mut(*field),
            _ => None,
        };
        match found {
            Some(RefOr::T(Schema::Object(text))) => list(text, values),
            Some(RefOr::T(Schema::Array(array))) => match &mut array.items {
                ArrayItems::RefOrSchema(item) => match &mut **item {
                    RefOr::T(Schema::Object(text)) => list(text, values),
                    _ => panic!("{schema}.{field} is no list of texts"),
                },
                ArrayItems::False => panic!("{schema}.{field} is no list of texts"),
            },
            _ => panic!("there is no text {schema}.{field}"),
        }
    }
}

fn list(text: &mut utoipa::openapi::schema::Object, values: &[&str]) {
    let is_nullable = serde_json::to_value(&text.schema_type).is_ok_and(|kinds| kinds.is_array());
    let null = is_nullable.then_some(serde_json::Value::Null);
    let values = values.iter().map(|value| serde_json::Value::from(*value));
    text.enum_values = Some(values.chain(null).collect());
}

/// Lists the values of a parameter of every operation that has one of this name.
pub fn list_parameter_values(document: &mut OpenApi, name: &str, values: &[&str]) {
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        for parameter in operation.parameters.iter_mut().flatten() {
            if let RefOr::T(parameter) = parameter
                && parameter.name == name
                && let Some(RefOr::T(Schema::Object(text))) = &mut parameter.schema
            {
                list(text, values);
            }
        }
    }
}

/// Gives every operation the tag of a role, and describes it.
pub fn tag_role(document: &mut OpenApi, role: &str, description: &str) {
    for operation in document.paths.paths.values_mut().flat_map(operations) {
        operation.tags = Some(vec![role.to_owned()]);
    }
    let tag = TagBuilder::new().name(role).description(Some(description)).build();
    document.tags.get_or_insert_default().push(tag);
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = path;
    [get, put, post, delete, patch].into_iter().flatten()
}
