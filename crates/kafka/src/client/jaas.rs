//! The login from `sasl.*` properties, among them Kafka's `sasl.jaas.config`.
use super::config::{Sasl, SaslCredentials, SaslMechanism, Secret};
use super::error::{ClientError, Result};
use super::properties::Properties;
use std::collections::BTreeMap;

/// Takes the login; `None` when no mechanism is given.
pub(crate) fn take_sasl(p: &mut Properties, parse: impl Fn(&str) -> Result<SaslMechanism>) -> Result<Option<Sasl>> {
    let mechanism = p.take("sasl.mechanism").or_else(|| p.take("sasl.mechanisms"));
    let jaas = p.take("sasl.jaas.config").map(|text| parse_jaas(&text)).transpose()?;
    // The names that librdkafka's users know.
    let username = p.take("sasl.username");
    let password = p.take("sasl.password");
    p.ignore(&["sasl.login.callback.handler.class"]);
    let Some(mechanism) = mechanism else { return Ok(None) };
    let mechanism = parse(&mechanism)?;
    let option = |name: &str| jaas.as_ref().and_then(|(_, options)| options.get(name).cloned());
    let missing = |name: &str| {
        ClientError::config("sasl.jaas.config", format!("{} needs the option {name}, as in: {}", mechanism.name(), example(mechanism)))
    };
    if let Some((module, _)) = &jaas {
        let wanted = module_name(mechanism);
        if module.rsplit('.').next() != Some(wanted) {
            return Err(ClientError::config(
                "sasl.jaas.config",
                format!("the login module is {module}, but {} needs {wanted}, as in: {}", mechanism.name(), example(mechanism)),
            ));
        }
    }
    let credentials = match mechanism {
        SaslMechanism::OAuthBearer => {
            let token = option("token").or_else(|| option("oauth.token")).or(password);
            SaslCredentials::Token(Secret::new(token.ok_or_else(|| missing("token"))?))
        }
        _ => SaslCredentials::Password {
            username: option("username").or(username).ok_or_else(|| missing("username"))?,
            password: Secret::new(option("password").or(password).ok_or_else(|| missing("password"))?),
        },
    };
    Ok(Some(Sasl { mechanism, credentials }))
}

fn module_name(mechanism: SaslMechanism) -> &'static str {
    match mechanism {
        SaslMechanism::Plain => "PlainLoginModule",
        SaslMechanism::ScramSha256 | SaslMechanism::ScramSha512 => "ScramLoginModule",
        SaslMechanism::OAuthBearer => "OAuthBearerLoginModule",
    }
}

fn example(mechanism: SaslMechanism) -> String {
    match mechanism {
        SaslMechanism::Plain => "org.apache.kafka.common.security.plain.PlainLoginModule required username=\"U\" password=\"P\";".into(),
        SaslMechanism::OAuthBearer => "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required token=\"T\";".into(),
        _ => "org.apache.kafka.common.security.scram.ScramLoginModule required username=\"U\" password=\"P\";".into(),
    }
}

/// `module flag name="value" ... ;` as a module and its options. Never repeats the text in an error: it holds a secret.
fn parse_jaas(text: &str) -> Result<(String, BTreeMap<String, String>)> {
    let wrong = |what: &str| ClientError::config("sasl.jaas.config", format!("{what}; the form is: MODULE required name=\"value\" ... ;"));
    let text = text.trim();
    let body = text.strip_suffix(';').ok_or_else(|| wrong("the ';' at the end is missing"))?;
    let mut chars = body.chars().peekable();
    let word = |chars: &mut std::iter::Peekable<std::str::Chars<'_>>| {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let mut out = String::new();
        while let Some(c) = chars.next_if(|c| !c.is_whitespace() && *c != '=') {
            out.push(c);
        }
        out
    };
    let module = word(&mut chars);
    let flag = word(&mut chars);
    if module.is_empty() || !["required", "requisite", "sufficient", "optional"].contains(&flag.to_ascii_lowercase().as_str()) {
        return Err(wrong("the module or its flag 'required' is missing"));
    }
    let mut options = BTreeMap::new();
    loop {
        let name = word(&mut chars);
        if name.is_empty() {
            return match chars.next() {
                None => Ok((module, options)),
                Some(_) => Err(wrong("an option has no name")),
            };
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        if chars.next() != Some('=') {
            return Err(wrong(&format!("after the option '{name}' the '=' is missing")));
        }
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let mut value = String::new();
        if let Some(quote) = chars.next_if(|c| *c == '"' || *c == '\'') {
            loop {
                match chars.next() {
                    None => return Err(wrong(&format!("the quote of option '{name}' is not closed"))),
                    Some(c) if c == quote => break,
                    Some('\\') => value.extend(chars.next()),
                    Some(c) => value.push(c),
                }
            }
        } else {
            while let Some(c) = chars.next_if(|c| !c.is_whitespace()) {
                value.push(c);
            }
        }
        options.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn options_are_read_with_quotes_and_without() {
        let (module, options) = parse_jaas(" a.b.PlainLoginModule  required\n username='x y' password=\"a\\\\b=;\" z=1 ;").unwrap();
        assert_eq!(module, "a.b.PlainLoginModule");
        assert_eq!(options["username"], "x y");
        assert_eq!(options["password"], "a\\b=;");
        assert_eq!(options["z"], "1");
    }

    #[test]
    fn a_broken_text_is_refused_without_repeating_it() {
        for text in [
            "",
            "M required password=\"s3cret\"",
            "M required password \"s3cret\";",
            "M required password=\"s3cret;",
            "M password=\"s3cret\";",
        ] {
            let e = parse_jaas(text).unwrap_err().to_string();
            assert!(!e.contains("s3cret"), "{e}");
        }
    }
}
