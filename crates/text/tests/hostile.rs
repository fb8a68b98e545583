//! Templates that try to take all stack, memory or time. Each is compiled, rendered and dropped on
//! a thread with 256 KiB of stack, under an allocator that counts: whatever happens is an error or
//! a text, within the bounds that `template` states.

use alight_text::{ChatError, ChatTemplate};

use crate::memory::peak;

/// What is promised: 64 MiB and 16 times the source and conversation, doubled while something
/// grows, and 128 bytes for each byte of the source for what it is compiled into.
fn allowed(source: usize) -> usize {
    2 * ((64 << 20) + 16 * (source + 2000)) + 128 * source + (1 << 20)
}

const STACK: usize = 256 << 10;

/// Compiles, renders and drops, within the bounds.
fn render(source: &str) -> Result<String, ChatError> {
    let (result, peak) = std::thread::scope(|scope| {
        let work = || {
            let context = serde_json::json!({
                "messages": [{"role": "user", "content": "Hello"}],
                "s": "some text", "n": 5, "deep": [[[[[1]]]]],
            });
            ChatTemplate::new(source, "", "")?.render_context(context.as_object().unwrap())
        };
        let thread = std::thread::Builder::new().stack_size(STACK);
        thread.spawn_scoped(scope, move || peak(work)).unwrap().join().unwrap()
    });
    let start: String = source.chars().take(80).collect();
    assert!(peak <= allowed(source.len()), "{peak} bytes for {start}");
    result
}

/// A short form of a source and of what came of it, for messages.
fn shown(source: &str, result: &Result<String, ChatError>) -> String {
    let start: String = source.chars().take(120).collect();
    match result {
        Ok(text) => format!("{start} … -> {} bytes", text.len()),
        Err(error) => format!("{start} … -> {error:?}"),
    }
}

/// One level of nesting too many, in every way in which a template can nest.
fn nested() -> Vec<String> {
    let n = 50_000;
    let around = |open: &str, inner: &str, close: &str| {
        format!("{{{{ {}{inner}{} }}}}", open.repeat(n), close.repeat(n))
    };
    let blocks =
        |open: &str, close: &str| format!("{}x{}", open.repeat(10_000), close.repeat(10_000));
    vec![
        around("(", "1", ")"),
        around("[", "", "]"),
        around("{1:", "1", "}"),
        around("f(", "", ")"),
        around("f(a=", "1", ")"),
        around("f(*", "a", ")"),
        around("l[", "0", "]"),
        around("l[:", "0", "]"),
        around("s|default(", "0", ")"),
        around("1 is eq(", "0", ")"),
        around("1 if 1 else ", "0", ""),
        around("(1,", "", ")"),
        around("(", "1", "+1)"),
        around("-(", "1", ")"),
        around("not (", "1", ")"),
        format!("{{% set {}a{} = 1 %}}", "(".repeat(n), ")".repeat(n)),
        format!("{{% for {}a{} in l %}}{{% endfor %}}", "(".repeat(n), ")".repeat(n)),
        blocks("{% if 1 %}", "{% endif %}"),
        blocks("{% for a in [1] %}", "{% endfor %}"),
        blocks("{% set x %}", "{% endset %}"),
        blocks("{% with %}", "{% endwith %}"),
        blocks("{% filter upper %}", "{% endfilter %}"),
        blocks("{% macro m() %}", "{% endmacro %}"),
        blocks("{% call m() %}", "{% endcall %}"),
        blocks("{% generation %}", "{% endgeneration %}"),
        blocks("{% if 1 %}{% else %}", "{% endif %}"),
    ]
}

#[test]
fn nothing_takes_more_stack_memory_or_time_than_is_stated() {
    for source in nested() {
        let result = render(&source);
        assert!(matches!(result, Err(ChatError::Syntax { .. })), "{}", shown(&source, &result));
    }
    long_chains_are_no_nesting();
    cyclic_and_deep_values();
    what_takes_memory_or_time();
    long_texts_take_linear_time();
}

/// Chains may be as long as the source: they take no stack.
fn long_chains_are_no_nesting() {
    let n = 30_000;
    let chain = |first: &str, more: &str| format!("{{{{ {first}{} }}}}", more.repeat(n));
    for source in [
        chain("1", " + 1"),
        chain("1", " - 1"),
        chain("1", " * 1"),
        chain("1", " // 1"),
        chain("1", " ** 1"),
        chain("1", " ~ 1"),
        chain("1", " and 1"),
        chain("0", " or 0"),
        chain("1", " == 1"),
        chain("1", " < 2"),
        chain("1", " in [1]"),
        chain("1", " not in [0]"),
        chain("1", " if 1"),
        chain("", "not ").replace(" }}", " 1 }}"),
        chain("", "-").replace(" }}", "1 }}"),
        chain("", "+").replace(" }}", "1 }}"),
        chain("s", " | upper"),
        chain("s", ".strip()"),
        chain("s", " is string"),
        chain("s", "[0]"),
        chain("s", "[:]"),
        chain("'a'", " 'a'"),
        chain("1", ", 1"),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n)),
        format!("{{% set x = 1 %}}{}", "{% set x = x + 1 %}".repeat(n)),
        format!(
            "{{% for x in [1] %}}{}{{% endfor %}}",
            "{% if 0 %}{% break %}{% endif %}".repeat(n)
        ),
        "{{ s }}".repeat(n),
        "{% for x in [1] %}{% endfor %}".repeat(n),
        "{% macro m() %}{% endmacro %}".repeat(n),
        "{# c #}".repeat(n),
        "{% raw %}{% endraw %}".repeat(n),
        format!("{{% macro m({}) %}}{{% endmacro %}}{{{{ m() }}}}", params(3000)),
        format!("{{{{ dict({}) | length }}}}", params(n).replace(',', "=1,") + "=1"),
    ] {
        let result = render(&source);
        // Some are errors for what they mean; none for how long they are.
        let fine = match &result {
            Ok(_) | Err(ChatError::Failed { .. }) => true,
            Err(ChatError::Syntax { message, .. }) => !message.contains("nest"),
            Err(_) => false,
        };
        assert!(fine, "{}", shown(&source, &result));
    }
}

fn params(n: usize) -> String {
    (0..n).map(|i| format!("p{i}")).collect::<Vec<_>>().join(",")
}

/// Namespaces that contain themselves, and values that nest as deep as a loop goes.
fn cyclic_and_deep_values() {
    let cycle = "{% set ns = namespace() %}{% set ns.a = [ns] %}{% set ns.b = {'x': ns} %}";
    let nest = "{% set ns = namespace(a=[]) %}{% for i in range(90000) %}";
    let too_deep = [
        format!("{cycle}{{{{ ns }}}}"),
        format!("{cycle}{{{{ ns.a | string }}}}"),
        format!("{cycle}{{{{ '%s' % ns }}}}"),
        format!("{cycle}{{{{ '{{}}'.format(ns) }}}}"),
        format!("{nest}{{% set ns.a = [ns.a] %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = (ns.a,) %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = {{'a': ns.a}} %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = [ns.a] | map('list') %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = dict(a=ns.a).values() %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = [ns.a].count %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = [ns.a] | batch(1) %}}{{% endfor %}}"),
        format!("{nest}{{% set ns.a = [ns.a] | groupby(0) %}}{{% endfor %}}"),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
        "{% macro m() %}{% call m() %}{{ caller }}{% endcall %}{% endmacro %}{{ m() }}".into(),
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}"
            .into(),
        "{{ [1] | map('map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map', 'map') }}"
            .into(),
    ];
    for source in &too_deep {
        let result = render(source);
        let stopped = matches!(result, Err(ChatError::TooDeep { .. } | ChatError::Failed { .. }));
        assert!(stopped, "{}", shown(source, &result));
    }
    let fine = [
        format!("{cycle}{{{{ ns == ns }}}}{{{{ ns.a == ns.a }}}}{{{{ [ns.a] == [ns.b] }}}}"),
        // A chain of macros through the scopes that they see: dropped without recursion.
        "{% set ns = namespace(f=0) %}{% for i in range(50000) %}{% set old = ns.f %}\
         {% macro m() %}{{ old }}{% endmacro %}{% set ns.f = m %}{% endfor %}"
            .into(),
        // And of namespaces.
        "{% set ns = namespace(f=0) %}{% for i in range(50000) %}{% set new = namespace() %}\
         {% set new.f = ns.f %}{% set ns.f = new %}{% endfor %}"
            .into(),
        // Values that share their parts are compared by what is shared.
        "{% set ns = namespace(a=[], b=[]) %}{% for i in range(100) %}{% set ns.a = [ns.a, ns.a] %}\
         {% endfor %}{{ ns.a == ns.a }}"
            .into(),
    ];
    for source in &fine {
        let result = render(source);
        assert!(result.is_ok(), "{}", shown(source, &result));
    }
    for source in [
        format!("{cycle}{{{{ ns.a < ns.a }}}}{{{{ ns < ns }}}}"),
        format!("{cycle}{{{{ [ns, ns] | sort }}}}"),
        format!("{cycle}{{{{ ns | tojson }}}}"),
        format!("{cycle}{{{{ [ns, ns] | unique | list }}}}"),
        format!("{cycle}{{{{ {{ns: 1}} }}}}"),
    ] {
        let result = render(&source);
        assert!(matches!(result, Err(ChatError::Failed { .. })), "{}", shown(&source, &result));
    }
}

/// Sources with a number that is far too large, `N`.
const LARGE: &[&str] = &[
    "{{ 'x' * N }}",
    "{{ 'é' * N }}",
    "{{ [1] * N }}",
    "{{ (1, 2) * N }}",
    "{{ 'a' | indent(N, true) }}",
    "{{ 'a\nb' | indent(N) }}",
    "{{ 'a' | center(N) }}",
    "{{ 'a'.center(N) }}",
    "{{ 'a'.ljust(N) }}",
    "{{ 'a'.rjust(N, 'é') }}",
    "{{ 'a'.zfill(N) }}",
    "{{ 'a\tb'.expandtabs(N) }}",
    "{{ [1] | batch(N, 0) | list }}",
    "{{ [1] | slice(N) | list }}",
    "{{ [1] | slice(N, 0) | list }}",
    "{{ '%Nd' % 1 }}",
    "{{ '%*d' % (N, 1) }}",
    "{{ '%-Ns' % 1 }}",
    "{{ '%0Nf' % 1 }}",
    "{{ '{:N}'.format(1) }}",
    "{{ '{:{}}'.format(1, N) }}",
    "{{ '{:>N}'.format('a') }}",
    "{{ [1] | tojson(indent=N) }}",
    "{{ range(N) | list }}",
    "{% for a in range(N) %}{% endfor %}",
];

/// Sources that grow by themselves, or go on for long.
const GROWING: &[&str] = &[
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
    "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "{% set ns = namespace(a=[1]) %}{% for i in range(99) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a | replace('x', 'xx') %}{% endfor %}",
    "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a.join(ns.a) %}{% endfor %}",
    "{% set ns = namespace(a='xx') %}{% for i in range(99) %}{% set ns.a = ns.a | list | join('yy') %}{% endfor %}",
    "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = '%s%s' % (ns.a, ns.a) %}{% endfor %}",
    "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a = '{0}{0}'.format(ns.a) %}{% endfor %}",
    "{% set ns = namespace(a='x') %}{% for i in range(99) %}{% set ns.a %}{{ ns.a }}{{ ns.a }}{% endset %}{% endfor %}",
    "{% set ns = namespace(a='\\\\') %}{% for i in range(99) %}{% set ns.a = ns.a | tojson %}{% endfor %}",
    "{% set ns = namespace(a=[]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
    "{% set ns = namespace(a=[]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | tojson }}",
    "{% set ns = namespace(a=[], b=[]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    "{% set ns = namespace(a=[], b=[]) %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] %}{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a < ns.b }}",
    "{% set ns = namespace(a=1, b=1) %}{% for i in range(99) %}{% set ns.a = (ns.a, ns.a) %}{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ {ns.a: 1, ns.b: 2} }}",
    "{% set r = range(100000) %}{% for i in r %}{% set x = r | list %}{% endfor %}",
    "{% set r = range(100000) | list %}{% for i in r %}{% set x = r[1:] %}{% endfor %}",
    "{% set r = range(100000) | list %}{% for i in r %}{% set x = r | sort(reverse=true) %}{% endfor %}",
    "{% set r = range(100000) | list %}{% for i in r %}{{ 'x' if -1 in r }}{% endfor %}",
    "{% set r = range(100000) | list %}{% for i in r %}{% set x = r | sum %}{% endfor %}",
    "{% set r = range(100000) | list %}{% for i in r %}{% set x = r | max %}{% endfor %}",
    "{% set ns = namespace(a=[]) %}{% for i in range(100000) %}{% set ns.a = ns.a + [ns.a | reverse] %}{% endfor %}",
    "{% set t = 'é' * 1000000 %}{% for i in range(100000) %}{{ t[-1] }}{% endfor %}",
    "{% set t = 'ab' * 1000000 %}{% for i in range(100000) %}{{ t.upper() == t }}{% endfor %}",
    "{% set t = 'ab' * 1000000 %}{% for i in range(100000) %}{{ 'x' in t }}{% endfor %}",
    "{% set t = 'ab' * 1000000 %}{% for i in range(100000) %}{{ t.find('x') }}{% endfor %}",
    "{% set t = 'ab' * 1000000 %}{% for i in range(100000) %}{{ t == t ~ '' }}{% endfor %}",
    "{% set t = ' ' * 1000000 %}{% for i in range(100000) %}{{ t | trim }}{% endfor %}",
    "{% set t = ' ' * 1000000 %}{% for i in range(100000) %}{{ t.isspace() }}{% endfor %}",
    "{% set t = 'x ' * 1000000 %}{% for i in range(100000) %}{% set u = t.split() %}{% endfor %}",
    "{% set t = 'x ' * 1000000 %}{% for i in range(100000) %}{% set u = t | list %}{% endfor %}",
    "{% set t = '1' * 1000000 %}{% for i in range(100000) %}{% set u = t | int %}{% endfor %}",
    "{% set t = 'x ' * 1000000 %}{% for i in range(100000) %}{% set u = t | wordcount %}{% endfor %}",
    "{% set t = 'x ' * 1000000 %}{% for i in range(100000) %}{% set u = t | title | capitalize %}{% endfor %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(99) }}",
    "{% for i in range(100000) %}{% for j in range(100) %}{% set n = namespace(a='x' * 100) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100) %}{% macro m() %}{% endmacro %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) %}{% for j in range(100) %}{% set c = cycler(i, j) %}{% endfor %}{% endfor %}",
    "{% set ns = namespace(a='a') %}{% for i in range(99) %}{% set ns.a = (ns.a, ns.a) | string %}{% endfor %}",
    "{% set ns = namespace(a='a') %}{% for i in range(99) %}{% set ns.a = [ns.a, ns.a] | tojson(indent=8) %}{% endfor %}",
];

/// Everything that makes much of little.
fn what_takes_memory_or_time() {
    let large = LARGE.iter().map(|source| source.replace('N', "9999999999999"));
    for source in large.chain(GROWING.iter().map(|source| (*source).to_owned())) {
        let source = &source;
        let result = render(source);
        let stopped = matches!(
            result,
            Err(ChatError::Endless { .. } | ChatError::TooDeep { .. } | ChatError::Failed { .. })
        );
        assert!(stopped, "{}", shown(source, &result));
    }
}

/// What would take time in the square of a text's length is either charged for it or linear: each
/// of these is one operation on a mebibyte, and must come to its end.
fn long_texts_take_linear_time() {
    let set = "{% set t = 'a' * 500000 %}{% set u = 'ab' * 200000 %}{% set b = 'b' * 500000 %}";
    for work in [
        "(t ~ 'b') in (t ~ t ~ 'b')",
        "t.find(t[1:] ~ 'b')",
        "t.rfind('b' ~ t[1:])",
        "t.count('aaaa')",
        "t.replace('aaaaaaaab', 'x') | length",
        "t.strip(b) | length",
        "t.strip(u) | length",
        "u.split('b' ~ t) | length",
        "t | trim(t ~ 'é') | length",
        "t.startswith(t)",
        "t.title() | length",
        "t | indent | length",
        "t | truncate(1000) | length",
        "t[::-1] == t",
        "t[::2] | length",
        "t.partition('b')[0] | length",
        "t.splitlines() | length",
        "(('%s' * 10000) % ((1,) * 10000)) | length",
        "'{}' * 1000",
        "(' ' * 500000).split() | length",
        "(' ' * 500000).strip() | length",
        "(t ~ 1) | int",
        "('9' * 400) | int",
        "[t, b, t] | sort | length",
        "[t, b, t] | unique | list | length",
        "{t: 1, b: 2}[t]",
    ] {
        let source = format!("{set}{{{{ {work} }}}}");
        let result = render(&source);
        assert!(result.is_ok(), "{}", shown(&source, &result));
    }
}
