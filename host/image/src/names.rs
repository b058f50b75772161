//! Functions' names, as a backtrace shows them.

/// A function's name without the modules of types that stand in angle brackets, and without types behind a module that is not
/// theirs: `<a::b::C as d::E>::f` is `<C as E>::f`, and `a::b::<impl c::d::E>::f` is `a::b::f`. The path outside says where a
/// function is; the others take a fifth of all names' bytes.
pub fn shorten(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    let (mut depth, mut word_at) = (0_u32, 0);
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '<' => depth += 1,
            '>' if !short.ends_with('-') => depth = depth.saturating_sub(1),
            ':' if depth > 0 && word_at < short.len() && characters.peek() == Some(&':') => {
                characters.next();
                short.truncate(word_at);
                continue;
            }
            _ => {}
        }
        short.push(character);
        if !(character.is_alphanumeric() || character == '_') {
            word_at = short.len();
        }
    }
    // What is dropped its caller tells.
    const DROP: &str = "core::ptr::drop_in_place";
    if short.starts_with(DROP) { DROP.into() } else { without_impls(&short) }
}

/// A name without the types whose functions stand in another module than they. A closure has that of the function around it.
fn without_impls(name: &str) -> String {
    let mut short = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, behind)) = rest.split_once("::<impl ") {
        let Some((_, after)) = behind.split_once(">::") else { break };
        short.push_str(before);
        short.push_str("::");
        rest = after;
    }
    (short + rest).replace("::{{closure}}", "")
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn modules_are_left_out_in_angle_brackets_alone() {
        for (name, wanted) in [
            ("a::b::c", "a::b::c"),
            ("a::b::<impl c::d::E>::f", "a::b::f"),
            ("a::<impl b::C<d::E>>::f::{{closure}}", "a::f"),
            ("core::ptr::drop_in_place<a::b::C>", "core::ptr::drop_in_place"),
            ("<a::B<c::D, e::F> as g::H<i::J>>::k::{{closure}}", "<B<D, F> as H<J>>::k"),
            ("<&mut [a::B] as c::D>::e", "<&mut [B] as D>::e"),
            ("<<a::B as c::D>::E as f::G>::h", "<<B as D>::E as G>::h"),
            ("a::b<fn(c::d) -> e::f, g::h>::i::j", "a::b<fn(d) -> f, h>::i::j"),
            ("a::é<b::ü>", "a::é<ü>"),
            ("memcpy", "memcpy"),
            (">>::<", ">>::<"),
        ] {
            assert_eq!(shorten(name), wanted, "{name}");
        }
    }
}
