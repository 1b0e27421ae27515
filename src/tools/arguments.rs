//! Tool parameters: declared once, told as JSON Schema, checked before anything runs.
//!
//! Rule: the check and the schema say the same. All violations of a call are named together, in the
//! order of the declaration; what a schema can't express is checked after it by the tool.

use serde_json::{Map, Value, json};

/// One parameter of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// What it may be.
    pub kind: Kind,
    /// Whether it must be there.
    pub required: bool,
    /// What it means, for the model.
    pub description: String,
    /// The only values that it may have; empty: any.
    pub one_of: Vec<Value>,
    /// The value that the tool takes when it isn't there. Told, not applied by the check.
    pub default: Option<Value>,
}

/// What a parameter may be.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Text.
    String,
    /// A number.
    Number,
    /// `true` or `false`.
    Boolean,
    /// An object; without parameters it is only checked to be one.
    Object(Vec<Param>),
    /// An array; without a kind it is only checked to be one.
    Array(Option<Box<Kind>>),
}

impl Param {
    /// A parameter that must be there.
    pub fn required(name: &str, kind: Kind, description: &str) -> Param {
        Param {
            required: true,
            ..Param::optional(name, kind, description)
        }
    }

    /// A parameter that may be left out.
    pub fn optional(name: &str, kind: Kind, description: &str) -> Param {
        Param {
            name: name.to_owned(),
            kind,
            required: false,
            description: description.to_owned(),
            one_of: Vec::new(),
            default: None,
        }
    }

    fn schema(&self) -> Value {
        let mut schema = self.kind.schema();
        schema.insert("description".to_owned(), json!(self.description));
        if !self.one_of.is_empty() {
            schema.insert("enum".to_owned(), json!(self.one_of));
        }
        if let Some(default) = &self.default {
            schema.insert("default".to_owned(), default.clone());
        }
        Value::Object(schema)
    }
}

impl Kind {
    fn schema(&self) -> Map<String, Value> {
        let schema = match self {
            Kind::String => json!({"type": "string"}),
            Kind::Number => json!({"type": "number"}),
            Kind::Boolean => json!({"type": "boolean"}),
            Kind::Object(params) if params.is_empty() => json!({"type": "object"}),
            Kind::Object(params) => schema(params),
            Kind::Array(None) => json!({"type": "array"}),
            Kind::Array(Some(items)) => json!({"type": "array", "items": items.schema()}),
        };
        match schema {
            Value::Object(map) => map,
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_) => Map::new(),
        }
    }

    fn noun(&self) -> &'static str {
        match self {
            Kind::String => "a string",
            Kind::Number => "a number",
            Kind::Boolean => "a boolean",
            Kind::Object(_) => "an object",
            Kind::Array(_) => "an array",
        }
    }

    fn matches(&self, value: &Value) -> bool {
        match self {
            Kind::String => value.is_string(),
            Kind::Number => value.is_number(),
            Kind::Boolean => value.is_boolean(),
            Kind::Object(_) => value.is_object(),
            Kind::Array(_) => value.is_array(),
        }
    }
}

/// The JSON Schema of an object with these parameters. Unknown keys are allowed.
pub fn schema(params: &[Param]) -> Value {
    let properties: Map<String, Value> = params
        .iter()
        .map(|param| (param.name.clone(), param.schema()))
        .collect();
    let required: Vec<&str> = params
        .iter()
        .filter(|param| param.required)
        .map(|param| param.name.as_str())
        .collect();
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// Every violation of the schema, in the order of the declaration; empty when there is none.
///
/// A missing one reads `missing required "command"`, a wrong type `"timeoutMs" must be a number`, a
/// value outside of an enumeration `"sandbox_permissions" must be one of "workspace-write",
/// "danger-full-access"`. Inner ones are named by their path, as in `"a.b"` and `"list[0]"`.
pub fn violations(params: &[Param], arguments: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match arguments {
        Value::Object(map) => check_object(params, map, "", &mut found),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            found.push("expected an object".to_owned())
        }
    }
    found
}

fn check_object(params: &[Param], map: &Map<String, Value>, at: &str, found: &mut Vec<String>) {
    for param in params {
        let path = format!("{at}{}", param.name);
        match map.get(&param.name) {
            None if param.required => found.push(format!("missing required \"{path}\"")),
            None => {}
            Some(value) => check_value(&param.kind, &param.one_of, value, &path, found),
        }
    }
}

fn check_value(kind: &Kind, one_of: &[Value], value: &Value, path: &str, found: &mut Vec<String>) {
    if !kind.matches(value) {
        found.push(format!("\"{path}\" must be {}", kind.noun()));
        return;
    }
    if !one_of.is_empty() && !one_of.contains(value) {
        let allowed: Vec<String> = one_of.iter().map(Value::to_string).collect();
        found.push(format!("\"{path}\" must be one of {}", allowed.join(", ")));
        return;
    }
    match (kind, value) {
        (Kind::Object(params), Value::Object(map)) => {
            check_object(params, map, &format!("{path}."), found);
        }
        (Kind::Array(Some(items)), Value::Array(values)) => {
            for (index, value) in values.iter().enumerate() {
                check_value(items, &[], value, &format!("{path}[{index}]"), found);
            }
        }
        _flat => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Vec<Param> {
        let mut colour = Param::optional("colour", Kind::String, "A colour.");
        colour.one_of = vec![json!("red"), json!("blue")];
        vec![
            Param::required("zeta", Kind::String, "First."),
            Param::required("alpha", Kind::Number, "Second."),
            Param::optional("flag", Kind::Boolean, "Third."),
            colour,
            Param::optional("free", Kind::Object(Vec::new()), "Anything."),
            Param::optional(
                "inner",
                Kind::Object(vec![Param::required("deep", Kind::String, "Inside.")]),
                "Nested.",
            ),
            Param::optional("any", Kind::Array(None), "Anything."),
            Param::optional(
                "list",
                Kind::Array(Some(Box::new(Kind::Number))),
                "Numbers.",
            ),
        ]
    }

    #[test]
    fn all_violations_are_named_in_the_order_of_the_declaration() {
        let arguments = json!({
            "colour": "green", "flag": "yes", "free": [], "inner": {}, "any": {}, "list": [1, "2"],
        });
        assert_eq!(
            violations(&params(), &arguments),
            [
                "missing required \"zeta\"",
                "missing required \"alpha\"",
                "\"flag\" must be a boolean",
                "\"colour\" must be one of \"red\", \"blue\"",
                "\"free\" must be an object",
                "missing required \"inner.deep\"",
                "\"any\" must be an array",
                "\"list[1]\" must be a number",
            ]
        );
    }

    #[test]
    fn right_arguments_pass_with_unknown_keys_and_without_the_optional_ones() {
        let least = json!({"zeta": "", "alpha": 0});
        assert_eq!(violations(&params(), &least), [""; 0]);
        let most = json!({
            "zeta": "z", "alpha": -1.5, "flag": false, "colour": "blue", "free": {"x": [null]},
            "inner": {"deep": "d", "more": 1}, "any": [{}, 1], "list": [1, 2], "unknown": null,
        });
        assert_eq!(violations(&params(), &most), [""; 0]);
        assert_eq!(violations(&params(), &json!([])), ["expected an object"]);
        assert_eq!(
            violations(&params(), &json!({"zeta": null, "alpha": 1, "flag": null})),
            ["\"zeta\" must be a string", "\"flag\" must be a boolean"]
        );
    }

    #[test]
    fn the_schema_says_what_the_check_checks() {
        assert_eq!(
            schema(&params()),
            json!({
                "type": "object",
                "properties": {
                    "zeta": {"type": "string", "description": "First."},
                    "alpha": {"type": "number", "description": "Second."},
                    "flag": {"type": "boolean", "description": "Third."},
                    "colour": {"type": "string", "description": "A colour.", "enum": ["red", "blue"]},
                    "free": {"type": "object", "description": "Anything."},
                    "inner": {
                        "type": "object",
                        "properties": {"deep": {"type": "string", "description": "Inside."}},
                        "required": ["deep"],
                        "description": "Nested.",
                    },
                    "any": {"type": "array", "description": "Anything."},
                    "list": {"type": "array", "items": {"type": "number"}, "description": "Numbers."},
                },
                "required": ["zeta", "alpha"],
            })
        );
    }
}
