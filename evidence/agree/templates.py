"""chat templates' language, feature by feature, as Python's jinja2 evaluates it

    python -m evidence agree templates              our evaluator beside jinja2, on every case below
    python -m evidence agree templates --golden     write jinja2's answers to tests/data/template_cases.json

Each case is a template of a line or two. Where jinja2 fails, so must ours. The recorded answers are a test of
`crates/text`; this command is for when a case is added, or jinja2 has changed.
"""

import json
import sys
from pathlib import Path

from evidence.agree.chat import BOS, EOS, rendered_by_jinja2
from evidence.lib import common
from evidence.lib.common import ROOT

GOLDEN = ROOT / "tests/data/template_cases.json"

CONTEXT = {
    "messages": [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": "Hi"},
                 {"role": "assistant", "content": "Hello!\n", "n": 3}, {"role": "user", "content": "日本 é 🚀"}],
    "add_generation_prompt": True,
    "s": "Hello, World", "empty": "", "u": "Straße ÀÉ ﬁ İ", "lines": "a\nb\r\n\n c\x0b d\u2028e\n", "spaces": "  a  b c  ",
    "n": 7, "m": -7, "big": 12345678901234567890, "x": 2.5, "y": -0.75, "tiny": 1e-7, "huge": 1e22, "t": True, "f": False, "none": None,
    "l": [3, 1, 2], "names": ["bob", "Alice", "carol", "alice"], "nested": [[1, [2, 3]], [], ["x"]], "nothing": [],
    "d": {"b": 1, "a": [1, 2], "items": "own", "c d": None}, "people": [{"name": "Zoe", "age": 3, "a": {"b": [10, 20]}},
                                                                        {"name": "adam", "age": 30, "a": {"b": [1]}},
                                                                        {"name": "Bo", "age": 3}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}}],
}

# What an expression gives: each becomes `{{ … }}`.
EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 / 2
8 / 2
7 // 2
-7 // 2
7 // -2
7.5 // 2
-7 % 3
7 % -3
-7.5 % 2
7.5 % -2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
2 ** 0.5
0 ** 0
0 ** -1
1 / 0
1 // 0
1 % 0
1.0 / 0
1 + true
true + true
1 == 1.0
1 == true
'1' == 1
[1, 2] == (1, 2)
[1, 2] == [1, 2.0]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
1 < 2 < 3
1 < 3 < 2
3 > 2 > 1 == 1
1 < 2 == 2 < 3
[1, 2] < [1, 3]
(1, 2) < (1, 2, 0)
'a' < 'b'
'Z' < 'a'
'a' < 1
none < 1
1 < 1.5
n is odd and m is odd
not true
not not 0
not none == none
1 and 2
0 and 2
1 or 2
'' or 'x'
none or 0 or []
1 and 0 or 3
1 if true else 2
1 if false else 2
(1 if false)
(1 if false) is defined
'a' if 0 else 'b' if 0 else 'c'
'a' if 1 if 0 else 2
1 if 2 > 1 and 3 else 4
'a' ~ 'b' ~ 1 ~ none ~ true ~ 1.5 ~ [1]
1 + 2 ~ 3 + 4
'a' + 'b' * 2
'ab' * 3
3 * 'ab'
'ab' * -1
[1] * 3
(1,) * 2
[1] + [2]
(1,) + (2,)
[1] + (2,)
'a' + 1
'a' * 1.5
'a' - 'b'
none + 1
-'a'
-true
+true
--1
-n
- n | abs
-n.real
n.x
1.5
.5
1.
1e3
1E-3
1_000
1_0.0_1
0x_ff
0b101
0o17
007
00
1e400
-1e400
0.1 + 0.2
1e16
1e15
123456789012345678
1.0
100.0
1e-4
0.00001
5e-324
1.7976931348623157e308
huge
tiny
big
big + 1
big * big
9007199254740993 / 1
'a' 'b' "c"
'\n\t\\\'\"\x41\u00e9\U0001F680\101\q'
'\0'
"it's"
'say "hi"'
['it\'s', 'say "hi"', 'both \' "', 'a\nb\\', '\x00\x7f\xa0é\u200b']
[]
()
(1,)
(1)
1, 2
[1, 2, ]
{}
{'a': 1, }
{'a': 1, 'a': 2, 'b': 3}
{1: 'a', 1.0: 'b', true: 'c'}
{(1, 2): 3}
{[1]: 2}
{none: 1, 1.5: 2}
[1, [2, (3,)], {'a': none, 'b': true}]
true, false, True, False, none, None
undefined_name
[undefined_name]
undefined_name.x
undefined_name['x']
undefined_name()
undefined_name + 1
1 + undefined_name
undefined_name ~ 'a'
undefined_name == undefined_name
undefined_name == none
undefined_name < 1
not undefined_name
-undefined_name
undefined_name in [1]
1 in undefined_name
undefined_name | length
undefined_name | list
undefined_name | upper
undefined_name | default('x')
undefined_name | string
undefined_name | int
undefined_name | join
undefined_name[1:]
undefined_name is iterable, undefined_name is sequence, undefined_name is callable
d.b
d['b']
d.x
d.x.y
d['x']
d.x is defined
d['items']
d.items()
d.keys()
d.values()
d.items() | list
d.keys() | list
d.values() | list
d.items() | length
d.items()[0]
d.get('b')
d.get('x')
d.get('x', 5)
d.get([1])
d.get()
d.pop('b')
d.update({})
d.clear
d.clear is defined
d.copy()
d['c d']
d[1]
d[[1]]
d | length
d | list
d | first
d | last
d | reverse | list
'b' in d
'x' in d
1 in d
[1] in d
'b' not in d
'b' in d.keys()
1 in d.values()
('b', 1) in d.items()
d._x
d.__class__
s.__class__
s._x
s.upper.__name__
l[0]
l[-1]
l[5]
l['a']
l[none]
l[true]
l.0
l.append(1)
l.append
l.count(1)
l.index(2)
l.index(9)
l.copy()
l.x
l[1:]
l[:1]
l[:-1]
l[::-1]
l[::2]
l[-2:]
l[10:]
l[1:1]
l[::0]
l[none:none]
l['a':]
s[0]
s[-1]
s[100]
s[1:4]
s[::-1]
s[::2]
s[-3:]
s['a']
u[0], u[3], u[5], u[-1]
u[2:6]
u[::-1]
u[::3]
u[-3::-1]
u | length
messages[3].content[1:4]
messages[-1]['content'][0]
(1, 2, 3)[1:]
(1, 2, 3)[1]
none[0]
none.x
d.c[1:]
n[1:]
d[1:]
d.b[1:]
n[0]
range(5) | list
range(2, 8, 3) | list
range(5, 0, -2) | list
range(0)
range(3)
range(3) | length
range(3)[1]
range(10)[2:8:2] | list
range(10)[::-1] | list
3 in range(5)
5 in range(5)
4 in range(0, 10, 3)
2.0 in range(5)
(-170141183460469231731687303715884105727 - 1) in range(0, -5, -1)
range(100001)
range('a')
range()
range(1, 2, 0)
range(3) == range(0, 3)
dict(a=1, b=2)
dict([('a', 1), ('b', 2)])
dict({'x': 1}, y=2)
dict(1)
namespace(a=1).a
namespace(a=1).b
namespace(a=1)['a']
namespace({'x': 1}, y=2).x
namespace(a=1)
namespace(a='x', b=[1])
'a' in 'abc'
'' in 'abc'
1 in 'abc'
none in 'abc'
1 in [1, 2]
1.0 in [1, 2]
[1] in [[1]]
1 in 5
1 in none
'a' not in 'abc'
not 'a' in 'abc'
1 in (1, 2)
s.upper()
s.lower()
s.title()
"they're bill's friends o'x 1a".title()
u.upper()
u.lower()
u.title()
u.swapcase()
u.capitalize()
u.casefold() == u.casefold()
'ΑΣ ΣΑΣ'.lower()
s.capitalize()
s.swapcase()
spaces.strip() ~ '|'
spaces.lstrip() ~ '|'
spaces.rstrip() ~ '|'
'xxaxx'.strip('x')
'xyaxy'.strip('yx')
'xxaxx'.lstrip('x')
'xxaxx'.rstrip('x')
'a'.strip(none)
'a'.strip(1)
'\x1c a \x85'.strip()
s.split()
spaces.split()
spaces.split(' ')
s.split(', ')
s.split('l', 1)
s.split('l', maxsplit=1)
s.split(sep='o')
spaces.split(none, 1)
spaces.rsplit(none, 1)
s.rsplit('l', 1)
s.rsplit('l')
s.split('')
''.split()
''.split(',')
'a,b,c'.rsplit(',', 5)
'a,b,c'.split(',', 0)
' a '.split(none, 0)
lines.splitlines()
lines.splitlines(true)
''.splitlines()
s.startswith('Hell')
s.startswith(('x', 'H'))
s.startswith('ello', 1)
s.startswith('ello', 1, 3)
s.startswith(['H'])
s.endswith('World')
s.endswith('Wor', 0, -2)
s.endswith('')
s.replace('l', 'L')
s.replace('l', 'L', 1)
s.replace('', '-')
s.replace('', '-', 2)
s.replace('x', 'y')
s.replace('l')
s.find('l')
s.find('l', 4)
s.find('x')
s.find('l', 4, 6)
s.find('', 20)
s.rfind('l')
u.find('ß')
u.rfind('É')
s.index('W')
s.index('x')
s.rindex('o')
s.count('l')
s.count('')
s.count('l', 3, 5)
'aaaa'.count('aa')
', '.join(['a', 'b'])
''.join([])
'-'.join('abc')
'-'.join([1])
'-'.join({'a': 1, 'b': 2})
'a'.ljust(3) ~ '|'
'a'.rjust(3, '*')
'a'.center(4, '*')
'ab'.center(5, '*')
'abc'.center(2)
'a'.center(4, 'xy')
'7'.zfill(3)
'-7'.zfill(4)
'a\tb'.expandtabs()
'a\tb\tc'.expandtabs(2)
'a-b-c'.partition('-')
'a-b-c'.rpartition('-')
'abc'.partition('x')
'abc'.rpartition('x')
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'abc'.removeprefix('x')
'abc'.isalpha(), 'a1'.isalpha(), ''.isalpha(), 'é'.isalpha()
'12'.isdigit(), '²'.isdigit(), '½'.isdigit(), '1a'.isdigit()
'12'.isdecimal(), '²'.isdecimal(), '½'.isnumeric(), '²'.isnumeric()
'a1'.isalnum(), 'a b'.isalnum()
' \t\n'.isspace(), ''.isspace(), 'a '.isspace()
'A1'.isupper(), 'Aa'.isupper(), '1'.isupper(), 'ǅ'.isupper()
'a1'.islower(), 'Aa'.islower(), '1'.islower()
'Aa Bb'.istitle(), 'AA'.istitle(), 'a'.istitle(), "It'S".istitle()
'abc'.isascii(), 'é'.isascii()
'ab'.isprintable(), 'a\n'.isprintable()
'a_1'.isidentifier(), '1a'.isidentifier()
'a'.nothing()
'a'.nothing
'{} {}'.format(1, 'a')
'{0} {1} {0}'.format('a', 'b')
'{a} {b}'.format(a=1, b=2)
'{0.x}'.format({'x': 1})
'{0[x]} {0[y][1]}'.format({'x': 1, 'y': [1, 2]})
'{!r} {!s}'.format('a', 'b')
'{:>5}|{:<5}|{:^5}|{:*^5}'.format('a', 'b', 'c', 'd')
'{:05d} {:+d} {:,} {:x} {:#x} {:b} {:o}'.format(42, 42, 1234567, 255, 255, 5, 8)
'{:.2f} {:10.3f}| {:e} {:g} {:%}'.format(3.14159, 2.5, 12345.678, 0.0001, 0.25)
'{:.3} {:.10g} {:,.2f}'.format('abcdef', 1.5, 1234567.891)
'{:{}}|'.format('a', 5)
'{{}} {}'.format(1)
'{'.format(1)
'}'.format(1)
'{} {}'.format(1)
'{} {0}'.format(1)
'{x}'.format(y=1)
'{:d}'.format('a')
'{:d}'.format(1.5)
'{:s}'.format(1)
'{} {} {}'.format(none, true, [1, 'a'])
'{:5}'.format(none)
'{:>4}|{:4}|'.format(1, 1)
'{:5}|{:d}'.format(true, true)
'{:c}'.format(65)
'{:08.3f}'.format(-3.14159)
'{:.0f} {:.0f} {:.0f}'.format(0.5, 1.5, 2.5)
'{}'.format(1.0)
'{:g} {:g} {:g}'.format(1e10, 100000.0, 1234567.0)
'{:.3e}'.format(0)
'{a}'.format_map({'a': 1})
'%s %d' % ('a', 1)
'%s' % 'a'
'%s' % 1
'%s' % [1, 2]
'%s %s' % 'a'
'%s' % ('a', 'b')
'%d' % 'a'
'%d' % 1.9
'%5d|%-5d|%05d|%+d|% d' % (42, 42, 42, 42, 42)
'%x %X %o %#x' % (255, 255, 8, 255)
'%.2f %8.3f %e %g %G' % (3.14159, 2.5, 12345.678, 0.0001, 1e-10)
'%5s|%-5s|%.2s' % ('abc', 'abc', 'abc')
'%(a)s %(b)d' % {'a': 'x', 'b': 2}
'%(x)s' % {'a': 1}
'%c%c' % ('a', 66)
'%r' % 'a'
'%%'
'%%' % ()
'%*d' % (5, 42)
'%.*f' % (2, 3.14159)
'%' % 1
'%q' % 1
'no fields' % {'a': 1}
'no fields' % 1
'%i %u' % (1, 2)
'%g' % 100000
'%g' % 1000000
'%g' % 123456789.0
'%s' % none
'%s' % undefined_name
s | upper
s | lower
s | title
"they're bill's friends-and (others)" | title
s | capitalize
5 | upper
none | upper
spaces | trim ~ '|'
'xxaxx' | trim('x')
5 | trim
s | replace('l', 'L')
s | replace('l', 'L', 1)
s | replace('l', 'L', count=2)
12321 | replace(2, 'x')
s | length
l | length
5 | length
none | length
l | count
l | first
nothing | first
nothing | first is defined
l | last
nothing | last
s | first
s | last
s | list
l | join(', ')
l | join
l | join(1)
people | join(', ', attribute='name')
s | join('-')
none | join
5 | join
names | sort
names | sort(case_sensitive=true)
names | sort(reverse=true)
l | sort
l | sort(true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='age,name') | map(attribute='name') | list
people | sort(attribute='name') | map(attribute='name') | list
[1, 'a'] | sort
[[2, 1], [1, 2]] | sort
names | unique | list
names | unique(case_sensitive=true) | list
[1, 1.0, true, 2] | unique | list
people | unique(attribute='age') | map(attribute='name') | list
names | min
names | max
l | min
l | max
nothing | min
people | max(attribute='age')
l | sum
people | sum(attribute='age')
l | sum(start=10)
['a'] | sum
l | reverse | list
s | reverse
'é🚀a' | reverse
5 | reverse
d | dictsort
d | dictsort(reverse=true)
{'B': 1, 'a': 0} | dictsort
{'B': 1, 'a': 0} | dictsort(true)
{'B': 1, 'a': 0} | dictsort(false, 'value')
{'B': 1, 'a': 0} | dictsort(by='x')
l | dictsort
d | items | list
none | items | list
undefined_name | items | list
people | map(attribute='name') | list
people | map(attribute='a.b.0') | list
people | map(attribute='a.b.1', default='none') | list
people | map(attribute='x', default=5) | list
names | map('upper') | list
names | map('replace', 'a', 'b') | list
names | map('length') | list
names | map('nofilter') | list
names | map | list
l | map('string') | join('+')
nothing | map('upper') | list
l | map('tojson') | list
[1, 0, '', 'a', none] | select | list
l | select('odd') | list
l | select('gt', 1) | list
l | select('>', 1) | list
l | reject('odd') | list
[1, 0] | reject | list
names | select('equalto', 'bob') | list
names | select('in', ['bob']) | list
names | select('notest') | list
messages | selectattr('role', 'equalto', 'user') | list | length
messages | selectattr('role', '==', 'user') | map(attribute='content') | list
messages | selectattr('n') | list | length
messages | selectattr('n', 'defined') | list | length
messages | rejectattr('role', 'equalto', 'user') | map(attribute='role') | join(',')
messages | rejectattr('n') | list | length
messages | selectattr('role', 'equalto', 'x') | first
messages | selectattr('role', 'equalto', 'x') | length
(messages | selectattr('role', 'equalto', 'x')) and 1
messages | selectattr('role', 'in', ['user', 'system']) | map(attribute='role') | unique | list
people | selectattr('a.b') | list | length
messages | selectattr | list
people | groupby('age') | list | length
people | groupby('age') | map(attribute='grouper') | list
people | groupby('age') | map(attribute='list') | map('length') | list
people | groupby('age') | first | list | length
people | groupby('x', default=1) | map('first') | list
names | groupby(0) | map('list') | list
l | batch(2) | list
l | batch(2, 'x') | list
l | batch(5) | list
range(7) | slice(3) | list
range(7) | slice(3, 'x') | list
l | slice(0) | list
'abc' | batch(2) | list
1.5 | round
2.5 | round
-2.5 | round
2.675 | round(2)
1234.5678 | round(-2)
1250 | round(-2)
42 | round
42.55 | round(1, 'floor')
42.51 | round(1, 'ceil')
1.1 | round(method='x')
42 | round(0, 'floor')
'a' | round
-5 | abs
-1.5 | abs
true | abs
'a' | abs
'42' | int
' 42 ' | int
'42.9' | int
'x' | int
'x' | int(5)
'ff' | int(base=16)
'0xff' | int(base=16)
'0b11' | int(0, 2)
'1_000' | int
'1__0' | int
3.9 | int
-3.9 | int
none | int
[1] | int
true | int
'1.5' | float
'x' | float
'inf' | float
'1e3' | float
none | float(2)
5 | float
5 | string
[1, 'a'] | string
5 | string | length
none | default('x')
none | default('x', true)
'' | default('x', true)
'' | d('x')
d.x | default('x')
d.x.y | default('x')
undefined_name | default
s | center(20) ~ '|'
s | indent
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2)
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('> ')
'a\nb\n' | indent(2) ~ '|'
'a\r\nb\r' | indent(2) ~ '|'
'' | indent(2) ~ '|'
'' | indent(2, true) ~ '|'
'\n' | indent(2, true, true) ~ '|'
5 | indent
'hello big world' | truncate(8)
'hello big world' | truncate(8, true)
'hello big world' | truncate(8, true, '…')
'hello big world' | truncate(11, leeway=0)
'hello big world' | truncate(2)
'hello big world' | truncate(14)
'a b, c_d e2' | wordcount
'%s-%s' | format('a', 1)
'%(a)s' | format(a=1)
'%s' | format('a', a=1)
'<a href="x">&\'</a>' | escape
'<' | e
'<' | safe
('<' | safe) + '<'
'<' + ('<' | safe)
'<' + ('<' | escape)
('<' | safe) ~ '<'
('<' | safe) + 5
('<' | safe) * 3 + '<'
('<a>' | safe)[1:] + '<'
('<a>' | safe)[0] + '<'
('<' | safe | upper) + '<'
('<' | safe | trim) + '<'
('<' | safe | string) + '<'
('<' | safe | replace('<', '>')) + '<'
('<' | safe | title) + '<'
(' <' | safe).strip() + '<'
('<' | safe).upper() + '<'
('<' | e | e) + '<'
'<' | e | forceescape
'<' | safe | escape
'<' | safe is escaped
('<' | safe) is escaped
('<' | safe) == '<'
('<' | safe) | tojson
5 | safe + '<'
'a' | safe + '<' + "'" | safe
1000 | filesizeformat, 1500 | filesizeformat, 1 | filesizeformat, 0 | filesizeformat, 1024 | filesizeformat(true), 1e30 | filesizeformat
'a b/c?é&' | urlencode
{'a b': 'c/d', 'x': 1} | urlencode
[('a', 1), ('b', '&')] | urlencode
s | attr('upper') is callable
d | attr('b')
d | attr('items') is callable
d | tojson
nested | tojson
d | tojson(indent=2)
nested | tojson(indent=1)
[1, 2.5, 1e20, none, true, "é\"\\\n\x01"] | tojson
"é🚀" | tojson(ensure_ascii=true)
{'b': 1, 'a': 2} | tojson(sort_keys=true)
{'b': [1, {}], 'a': []} | tojson(separators=(',', ':'))
{'b': [1], 'a': 1} | tojson(indent=2, separators=(',', ':'))
{1: 2, true: 3, none: 4, 1.5: 5} | tojson
{(1, 2): 3} | tojson
(1, 2) | tojson
undefined_name | tojson
[undefined_name] | tojson
range(3) | tojson
d.items() | tojson
d.items | tojson
namespace(a=1) | tojson
l | map('string') | tojson
l | map('string') | list | tojson
"<script>&'" | tojson
tools | tojson
tools[0] | tojson(indent=4)
[] | tojson(indent=2)
{} | tojson(indent=2)
[[]] | tojson(indent=0)
[1] | tojson(indent='--')
1e16 | tojson, 1.0 | tojson, 1e-7 | tojson
big | tojson
s is string, l is string
l is sequence, d is sequence, s is sequence, 5 is sequence, d.items() is sequence
l is iterable, d is iterable, s is iterable, 5 is iterable, none is iterable, d.items() is iterable
d is mapping, l is mapping
n is number, x is number, t is number, s is number
n is integer, t is integer, x is integer
x is float, n is float
t is boolean, n is boolean
t is true, f is false, 1 is true
none is none, none is not none, undefined_name is none
undefined_name is defined, undefined_name is undefined, s is defined
n is odd, n is even, m is odd, 2.0 is even
'a' is odd
n is divisibleby(7), n is divisibleby 2
n is divisibleby 0
n is eq 7, n is == 7, n is equalto(7)
n is ne 7, n is gt 5, n is lessthan 5, n is ge 7, n is le(6), n is lt 8, n is greaterthan 1
n is in [7], n is in(l), 'a' is in 'abc'
n is sameas 7, none is sameas none, true is sameas true
'abc' is lower, 'ABC' is upper, 5 is lower
s is callable, range is callable, s.upper is callable, namespace is callable
'upper' is filter, 'nofilter' is filter, 'odd' is test, 'notest' is test
'a' is escaped
s is not string
not s is string
s is defined and s is string
(s is defined) == true
n is odd == true
n is odd ~ 'x'
n + 1 is odd
s | upper is string
s is string | upper
n is divisibleby 7 and true
s is string if true else 1
l is defined or undefined_name.x
none is not none or true
raise_exception('no: ' ~ n)
raise_exception()
raise_exception(5)
strftime_now('%%')
d.items() == d.items()
d.items() == {}.items()
d.keys() == d.keys()
d.values() == d.values()
d.items() == none
range == range
range == dict
{(1, 2): 'a', (1, 1): 'b', (0, 5): 'c', (1,): 'd'}
{(1, 2): 'a', (1,): 'b'}[1, 2]
{(1, 2): 'a', (1,): 'b'}[(1,)]
{1: 'a', none: 'b', 1.5: 'd'}.get('x')
'%c' % 65
'%c' % 'a'
'%c' % 'ab'
'%c' % 1.5
'%.5d' % 42
'%+.5d' % 42
'%d' % 'x'
'%x' % 'x'
'%f' % ('inf' | float)
'%f' % ('nan' | float)
'%08.3f|%-8d|% d' % (x, n, n)
'{!x}'.format(1)
'{0[}'.format(l)
'{0[1]x}'.format(l)
'{0[1]}{0[2]}'.format(l)
'{:.f}'.format(1.5)
'{:5d x}'.format(1)
'{:.2d}'.format(1)
'{:c}'.format(1114112)
'{:c}{:c}'.format(65, 8364)
'{:,}|{:_}|{:,}'.format(1234.5, 12345.25, -1234567)
'{:0<8}|{:08}|{:0>8}|{:08}'.format(x, x, 'a', n)
'{:{}}'.format('a', 5)
'{:{:{}}}'.format('a', 'b', 1)
'nan' | float | tojson
'inf' | float | tojson
'-inf' | float | tojson
"\r\t\b\f" | tojson
'\a\b\f\v' | length
'\a\b\f\v' | tojson
'\x4'
'\u12'
1 | tojson(indent=[])
1 | tojson(separators=5)
[1, {'a': 2}] | tojson(indent='..')
x.is_integer()
(2.0).is_integer()
'aab'.count('a', 5)
'aab'.startswith('a', 9)
'aab'.startswith(1)
'aab'.endswith(('b', 'c'))
'{b}'.format_map(d)
dict(1)
dict([1])
dict([[1, 2], [3, 4]])
dict(d, d)
range(1, 2, step=1)
'x'.center()
'x'.center('a')
[1] | urlencode
{'a b': 1, 'c': 'é/'} | urlencode
[['a', 1], ('b', 2)] | urlencode
5 | urlencode
'x' | filesizeformat
'nan' | float | round
'inf' | float | round
x is foo.bar
x | foo.bar
names | sum
names | sum(start='')
dict(**1)
dict(*1)
dict(a=1, *l)
dict(**d, a=1)
1 < 2 < 1
3 < 2 < n
'x' not n
-'a'
+none
-true
(-1) ** -3
(-1) ** -2
-0.0 % 5
0.0 % -5
[{}, {'a': 1}, {}] | map(attribute='a') | unique | list | length
people | unique(attribute='zz') | list | length
[{'a': 'nan' | float}, {'a': 1}] | groupby('a') | list | length
'0x1F' | int(0, 0)
'012' | int(7, 0)
'00' | int(7, 0)
'12' | int(0, 0)
'-0b11' | int(7, 0)
'ab'.split('')
'ab'.rsplit('')
'ab'.partition('')
[] | first
[] | last
[] | first | default('none')
{} | first
l | reverse | list
5 | reverse
undefined_one | reverse | list
{'b': 1, 'a': 2}.copy()
'a' b
l[1:2, 0]
l[0, 1]
(1, 'a') < (1, 'b')
[[2, 1], [1, 5], [1, 2]] | sort
none < 1
cycler == joiner
('%s' * 3) % (1, none, true)
strftime_now('%u') | length
strftime_now('%n%t')
strftime_now('%D') == strftime_now('%x')
strftime_now() 
s.upper ()
s . upper()
s['upper']()
l | join (', ')
(l | sort)[0]
l | sort [0]
(s | upper).lower()
s | upper | lower | title
s.split(',')[0].upper()[1:3]
s.split(',')[0] | upper
-1 | abs
-n | abs
(-n) | abs
2 * -n
2 - -n
[1, 2, 3][1]
{'a': {'b': [1, 2]}}.a.b[1]
{'a': 1}['a']
'abc'[1]
'abc'.upper()[0]
('a', 'b')[0]
[*l]
dict(**d)
range(*[1, 5, 2]) | list
'{} {a}'.format(*[1], **{'a': 2})
'{}'.format(*5)
joiner('; ')() ~ 'x'
cycler('a', 'b').next()
cycler()
loop
caller
caller()
'日本語'.split('本')
messages[3].content.split(' ')
messages | length
messages[0].content | trim
messages[0]['role'] == 'system'
messages[-1:] | length
messages[1:] | map(attribute='role') | list
(messages | first).role
(messages | last)['content']
messages | map(attribute='content') | map('trim') | list
messages[0].keys() | list | join(',')
messages[0] == {'role': 'system', 'content': ' Be kind. '}
'content' in messages[0]
messages[0].content.strip() + '\n'
tools[0].function.parameters.properties.keys() | list
tools[0].function.parameters.properties.items() | list
tools[0].function.parameters.properties.q.type
tools is defined and tools is not none and tools | length > 0
bos_token ~ eos_token
documents is none
1 2
1 +
(1
1)
[1
{'a' 1}
'a
a b
x.
x..y
x[
x[]
|upper
s |
s | 5
s is
s is is
s is defined is defined
f(a=1, 2)
f(*a, b)
f(a=1, a=2)
f(,)
{1, 2}
{% if %}
a = 1
not
1 if
1 if 2 else
@
a ? b
a && b
a ! b
$
`a`
a;b
a:b
lambda x: x
[x for x in l]
s | nofilter
s is notest
s.upper( )
s.replace('l', 'L',)
{'a': 1,'b': 2,}.b
none.__class__
true.real
namespace.x
range.x
1.5.x
1 .x
l.__len__()
"".join(["a", "b"]) + "c"
0 or none or 'x' and 'y'
1 in [1] in [[1]]
1 == 1 == true
1 != 2 != 1
'a' 'b'.upper()
'a' ~ 'b' == 'ab'
'a' ~ 1 + 2
1 ~ 2 * 3
2 * 3 ~ 1
s[:5] ~ s[5:]
s[1:][1:][1:]
l[1:][0]
l[0:2] | join
l[-100:100]
l[100:-100:-1]
l[2:0:-1]
s[5:1:-2]
u[5:1:-2]
1 < 2 and 2 < 3 or false
not 1 == 2
not (1 == 2)
(not 1) == 2
namespace(a=namespace(b=5)).a.b
{'a': namespace(b=1)}.a.b
d.get('a')[1]
d.get('x', {}).get('y', 'z')
d['a'][0]
d.a.0
d.a[0]
messages.0.role
[[1, 2], [3, 4]] | map('join', '-') | list
[[3, 1], [2]] | map('sort') | list
[[1, 2], [3]] | sum(start=[])
[{'x': 1}] | map(attribute='x') | first
(1, 2) | list
(1, 2) + (3,) | list
'a,b' | replace(',', '\n')
s | list | length
['b', 'a'] | sort | first
['b', 'a'] | sort | reverse | list
[3, 1] | max + 1
true | string
true | tojson
none | string
none ~ ''
none | tojson
1.0 | int
1.0 | string
10 / 2 | int
(10 / 2) | int
7 // 2.0
2 ** 62 * 2
2 ** 100
-(2 ** 63)
1e308 * 10
2.0 ** 2000
10 % 3.5
-1 // 3.0
-0.0
0.0 * -1
1 / 3
2 / 3
1e100
123456.789e3
1e22 + 1
"""

# Whole templates, apart by a line of dashes.
TEMPLATES = r"""
{% for x in l %}{{ x }}{{ ',' if not loop.last }}{% endfor %}
---
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
---
{% for x in l %}[{{ loop.previtem }}|{{ x }}|{{ loop.nextitem }}|{{ loop.previtem is defined }}{{ loop.nextitem is defined }}]{% endfor %}
---
{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}
---
{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}
---
{% for x in l %}{{ loop.cycle() }}{% endfor %}
---
{% for x in nothing %}x{% else %}none{% endfor %}
---
{% for x in l %}x{% else %}none{% endfor %}
---
{% for x in l if x > 1 %}{{ x }}{% endfor %}
---
{% for x in l if x > 1 %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ loop.last }} {% endfor %}
---
{% for x in l if x > 5 %}{{ x }}{% else %}none{% endfor %}
---
{% for x in l if x > 5 %}{{ loop.index }}{% else %}none{% endfor %}
---
{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% if not loop.last %}, {% endif %}{% endfor %}
---
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}
---
{% for k in d %}{{ k }};{% endfor %}
---
{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}
---
{% for a, (b, c) in [(1, (2, 3)), [4, [5, 6]]] %}{{ a }}{{ b }}{{ c }} {% endfor %}
---
{% for a, b in [(1, 2, 3)] %}{% endfor %}
---
{% for a, b in [1] %}{% endfor %}
---
{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}
---
{% for x in 'añb' %}{{ x }}-{% endfor %}
---
{% for x in 5 %}{% endfor %}
---
{% for x in none %}{% endfor %}
---
{% for x in undefined_name %}x{% else %}empty{% endfor %}
---
{% for x in range(3) %}{{ x }}{% endfor %}
---
{% for x in 1, 2, 3 %}{{ x }}{% endfor %}
---
{% for x in [1, 2] + [3] %}{{ x }}{% endfor %}
---
{% for x in (1, 2) %}{{ x }}{% endfor %}{{ x is defined }}
---
{% for x in l %}{% for y in l %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}
---
{% for x in l %}{% set outer = loop %}{% for y in l %}{{ outer.index }}.{{ loop.index }} {% endfor %}{% endfor %}
---
{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
---
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}
---
{% for x in l %}{% break %}{% else %}none{% endfor %}
---
{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}
---
{% for x in l %}{% with y = x %}{% if y == 1 %}{% continue %}{% endif %}{{ y }}{% endwith %}{% endfor %}{{ y is defined }}
---
{% for x in range(10) %}{% set z = x %}{% if x == 5 %}{% break %}{% endif %}{% endfor %}{{ z is defined }}
---
{% break %}
---
{% continue %}
---
{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}
---
{% set ns = namespace(found=false) %}{% for x in l if not ns.found %}{% if x == 1 %}{% set ns.found = true %}{% endif %}{{ x }}{% endfor %}
---
{% for loop in l %}{% endfor %}
---
{% for x in l recursive %}{{ x }}{% endfor %}{{ raise_exception('recursive loops are refused') }}
---
{% for x in l %}{{ loop }}{% endfor %}
---
{% for x in l %}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}
---
{% for x in l | reverse %}{{ x }}{{ loop.length }}{% endfor %}
---
{% for x in l | map('string') %}{{ x }}{{ loop.last }}{% endfor %}
---
{% for c in people | groupby('age') %}{{ c.grouper }}:{{ c.list | map(attribute='name') | join(',') }};{% endfor %}
---
{% for age, who in people | groupby('age') %}{{ age }}:{{ who | length }};{% endfor %}
---
{% for row in l | batch(2) %}{{ row }}{% endfor %}
---
{% if true %}a{% endif %}{% if false %}b{% endif %}
---
{% if false %}a{% elif true %}b{% else %}c{% endif %}
---
{% if false %}a{% elif none %}b{% elif '' %}x{% else %}c{% endif %}
---
{% if undefined_name %}a{% else %}b{% endif %}
---
{% if l %}l{% endif %}{% if nothing %}n{% endif %}{% if d %}d{% endif %}{% if 0.0 %}z{% endif %}{% if {} %}e{% endif %}{% if () %}t{% endif %}
---
{% if 1, 0 %}a{% endif %}
---
{% if messages | selectattr('role', 'equalto', 'nobody') %}generators are true{% endif %}
---
{% if 'x' is defined if 1 else 0 %}{% endif %}
---
{% if not tools is defined %}a{% else %}b{% endif %}
---
{% if (messages | length) > 2 and messages[0].role == 'system' %}yes{% endif %}
---
{% if n > 5 %}a{% elif undefined_name.x %}b{% endif %}
---
{% if false %}{{ undefined_name.x.y }}{{ s | nofilter }}{{ s is notest }}{% endif %}ok
---
{% if true %}{{ s | nofilter }}{% endif %}
---
{% for x in nothing %}{{ s | nofilter }}{% endfor %}
---
{% if false %}{% for x in l %}{{ s | nofilter }}{% endfor %}{% endif %}
---
{{ 1 if true else s | nofilter }}
---
{% set x = 1 %}{{ x }}{% set x = x + 1 %}{{ x }}
---
{% set a, b = 1, 2 %}{{ a }}{{ b }}
---
{% set a, b = (1, 2), 3 %}{{ a }}{{ b }}
---
{% set (a, b) = [1, 2] %}{{ a }}{{ b }}
---
{% set a, b = [1] %}
---
{% set x = 1, %}{{ x }}
---
{% set x %}a{{ n }}b{% endset %}[{{ x }}]{{ x is string }}
---
{% set x | upper %}a{{ s }}b{% endset %}{{ x }}
---
{% set x | replace('a', 'b') | upper %}aa{% endset %}{{ x }}
---
{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}
---
{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{% set ns.a = ns.a + 1 %}{{ ns.a }}
---
{% set ns = namespace(a=1) %}{% for x in l %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}
---
{% set ns = namespace() %}{% set ns.x %}block{{ n }}{% endset %}{{ ns.x }}
---
{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}
---
{% set d.x = 1 %}
---
{% set undefined_name.x = 1 %}
---
{% set s.x = 1 %}
---
{% set ns = namespace(a=[]) %}{% set ns.a = ns.a + [1] %}{% set ns.a = ns.a + [2] %}{{ ns.a }}
---
{% set ns = namespace() %}{{ ns.x is defined }}{{ ns.x }}{{ ns['x'] is defined }}
---
{% set ns = namespace(_a=1, b=2) %}{{ ns._a }}{{ ns.b }}
---
{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}
---
{% set y = 0 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }} {% endfor %}{{ y }}
---
{% if true %}{% set z = 1 %}{% endif %}{{ z }}
---
{% set messages = messages[1:] %}{{ messages | length }}
---
{% for m in messages %}{% if loop.first %}{% set messages = messages[1:] %}{% endif %}{{ messages | length }}{% endfor %}
---
{% set x = y %}{{ x is defined }}
---
{% set true = 1 %}
---
{% set 5 = 1 %}
---
{% set x = %}
---
{% set x 1 %}
---
{% set %}
---
{% set x.y.z = 1 %}
---
{% macro m(a, b=2, c='x') %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(1, c=5) }}|{{ m(a=9, b=8, c=7) }}
---
{% macro m(a) %}[{{ a }}{{ a is defined }}]{% endmacro %}{{ m() }}{{ m(none) }}
---
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
---
{% macro m(a) %}{% endmacro %}{{ m(b=1) }}
---
{% macro m(a) %}{{ a }}{{ kwargs }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3, x=4) }}
---
{% macro m(a) %}{{ a }}{{ varargs }}{% endmacro %}{{ m(1, 2, 3) }}
---
{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(5) }}
---
{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m('x') }}{{ m('x', 'y') }}
---
{% macro m(a=1, b) %}{% endmacro %}
---
{% macro m(a, a) %}{% endmacro %}
---
{% macro m() %}{{ n }}{% endmacro %}{% set n = 100 %}{{ m() }}
---
{% macro m() %}{{ q }}{% endmacro %}{{ m() }}{% set q = 1 %}{{ m() }}
---
{% macro m() %}{% set q = 1 %}{{ q }}{% endmacro %}{{ m() }}{{ q is defined }}
---
{% macro fact(k) %}{% if k <= 1 %}1{% else %}{{ k * (fact(k - 1) | int) }}{% endif %}{% endmacro %}{{ fact(10) }}
---
{% macro tree(v, depth=0) %}{% for x in v %}{% if x is iterable and x is not string %}({{ tree(x, depth + 1) }}){% else %}{{ depth }}:{{ x }} {% endif %}{% endfor %}{% endmacro %}{{ tree(nested) }}
---
{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
---
{{ m() }}{% macro m() %}x{% endmacro %}
---
{% macro m() %}x{% endmacro %}{{ m }}{{ m.name }}{{ m is callable }}
---
{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}body{% endcall %}
---
{% macro m() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b) m() %}{{ a }}-{{ b }}{% endcall %}
---
{% macro m() %}<{{ caller(1) }}>{% endmacro %}{% call(a, b=5) m() %}{{ a }}-{{ b }}{% endcall %}
---
{% macro m(x) %}{% for i in range(x) %}{{ caller(i) }}{% endfor %}{% endmacro %}{% call(i) m(3) %}[{{ i }}{{ n }}]{% endcall %}
---
{% macro m() %}{% endmacro %}{% call m() %}body{% endcall %}
---
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
---
{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}
---
{% macro m(caller=none) %}{{ caller() if caller else 'no' }}{% endmacro %}{{ m() }}{% call m() %}yes{% endcall %}
---
{% macro outer() %}{% call inner() %}{{ 'x' }}{% endcall %}{% endmacro %}{% macro inner() %}({{ caller() }}){% endmacro %}{{ outer() }}
---
{% set v = 1 %}{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ v }}{% set v = 2 %}{{ v }}{% endcall %}{{ v }}
---
{% call s %}{% endcall %}
---
{% call 1 + 1 %}{% endcall %}
---
{% macro m(x) %}{{ x | upper }}{% endmacro %}{{ m('a') ~ m('b') }}{{ m('c') | length }}
---
{% macro m(x) %}{{ x }}{% endmacro %}{{ [m(1), m(2)] }}
---
{% macro m(x) %}  {{- x -}}  {% endmacro %}[{{ m(1) }}]
---
{% macro m(v) -%}{{ v }}
{%- endmacro %}{{ m(1) }}|
---
{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}
---
{% filter upper %}a{{ s }}{% endfilter %}
---
{% filter replace('a', 'b') | upper %}aa{% endfilter %}
---
{% filter upper %}{% set q = 1 %}{% endfilter %}{{ q is defined }}
---
{% filter indent(2) %}a
b{% endfilter %}
---
{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
---
{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}
---
{% with a = 1, b = a %}{{ b is defined }}{% endwith %}
---
{% with a, b = 1, 2 %}{% endwith %}
---
{% raw %}{{ x }} {% if %} {# c #}{% endraw %}
---
{%- raw -%}  {{ x }}  {%- endraw -%}  a
---
a {% raw %} b {% endraw %} c
---
{% raw %}x
---
{# a comment #}x{#- another -#} y
---
{# unclosed
---
a
{# comment #}
b
---
a
  {# comment #}
b
---
a {# c #} b
---
a
{% if true %}
b
{% endif %}
c
---
a
  {% if true %}
  b
  {% endif %}
c
---
a
  {%+ if true %}
b
  {%+ endif +%}
c
---
a
  {% if true +%}
b
{% endif %}
---
a  {%- if true -%}  b  {%- endif -%}  c
---
a  {{- n -}}  b
---
a
{{- n }}
b
{{ n -}}

c
---
a
  {{ n }}
b
---
x {{+ n }} {{ n +}}
---
  {% if true %}x{% endif %}
---
   {{ n }}
---
{{ n }}  {% if true %}x{% endif %}
y
---
{% if true %}

x
{% endif %}
y
---
{% set x = 1 %}
{% set y = 2 %}
{{ x }}{{ y }}
---
 	 {% set x = 1 -%}
   {{ x }}
---
trailing newline

---
{{ n }}
{{ n }}

{{ n }}
---
{%if true%}a{%endif%}
---
{%-if true-%} a {%-endif-%}
---
{{n}}{{'}}'}}{{"%}"}}{{ '{{' }}
---
{{ {'a': {'b': 1}} }}
---
{{ {'a': {}}}}
---
{{ {'a': 1}['a'] }}
---
{% if {'a': 1} %}x{% endif %}
---
}} %} #} { { % }
---
{{ }}
---
{{ n
---
{% if true %}
---
{% if true %}{% endfor %}
---
{% endif %}
---
{% else %}
---
{% unknown %}
---
{% 5 %}
---
{% %}
---
{% if true %}{% else %}{% else %}{% endif %}
---
{% if true %}{% else %}{% elif true %}{% endif %}
---
{% for x in l %}
---
{% for in l %}{% endfor %}
---
{% for x l %}{% endfor %}
---
{% for x in %}{% endfor %}
---
{% for x.y in l %}{% endfor %}
---
{% macro %}{% endmacro %}
---
{% macro m %}{% endmacro %}
---
{% macro m( %}{% endmacro %}
---
{% do l.append(1) %}
---
{% generation %}a{% endgeneration %}b
---
{% generation %}
a
{% endgeneration %}
b
---
{% for m in messages %}{%- generation -%} {{ m.role }} {%- endgeneration -%} {% endfor %}
---
{% generation %}{% set g = 1 %}{% endgeneration %}{{ g is defined }}
---
{% print 1 %}{% print 'a', n %}
---
{% autoescape false %}<{{ '<' }}{% endautoescape %}
---
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.next() }}
---
{% set j = joiner(', ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}
---
{% set j = joiner() %}{{ j() }}{{ j() }}
---
{% set g = l | map('string') %}{{ g | list }}{{ g | list }}
---
{% set g = l | select %}{{ g | first }}{{ g | list }}
---
{% set f = s.upper %}{{ f() }}
---
{% set f = namespace %}{{ f(a=1).a }}
---
{% set range = 5 %}{{ range }}
---
{% set ns = namespace(m=messages) %}{% for m in ns.m %}{{ m.role[0] }}{% endfor %}
---
{% set a = [1] %}{% set b = a %}{% set a = a + [2] %}{{ a }}{{ b }}
---
{% set ns = namespace() %}{% set ns.self = ns %}{{ ns.self.self is sameas ns }}{{ ns == ns.self }}
---
{% set a = namespace() %}{% set b = namespace() %}{{ a == b }}{{ a == a }}
---
{{ messages[0].content.strip() }}
{%- for m in messages[1:] %}

{{ m.role | upper }}: {{ m.content | trim }}
{%- endfor %}
---
{% for m in messages %}
{% if m.role == 'user' %}
[INST] {{ m.content }} [/INST]
{% elif m.role == 'assistant' %}
{{ m.content }}</s>
{% endif %}
{% endfor %}
---
{%- for tool in tools %}
{{ tool | tojson(indent=2) | indent(4) }}
{%- endfor %}
---
{% set content %}
{% for m in messages %}{{ m.role }}
{% endfor %}
{% endset %}
[{{ content }}]
---
line one
{{ raise_exception('stop') }}
---
{% if messages[0].role != 'system' %}{{ raise_exception('first must be system') }}{% endif %}ok
---
{{ strftime_now is defined }}{{ raise_exception is defined }}
---
{{- '' -}}
---
  
---
{{ 'a' -}}
  
b
---
{{ 'a' }}
---
{% set x = {'a': 1, 'b': {'c': [1, 2, {'d': 3}]}} %}{{ x.b.c[2].d }}{{ x['b']['c'][-1]['d'] }}
---
{% set parts = 'a</think>b'.split('</think>') %}{{ parts[0] }}|{{ parts[-1] }}|{{ parts | length }}
---
{% set x = 'a' if n > 5 else 'b' %}{{ x }}
---
{% set x = messages | selectattr('role', 'equalto', 'user') | list %}{{ x | length }}{{ x[0].content }}
---
{{ "a" if messages[0]["role"] == "system" else "b" }}{{- "c" }}
---
{% for k, v in tools[0].function.items() %}{{ k }}:{{ v if v is string else v | tojson }};{% endfor %}
---
{%- macro render(v, indent=0) -%}
{%- if v is mapping -%}
{%- for k, w in v.items() %}
{{ ' ' * indent }}{{ k }}:{{ render(w, indent + 2) }}
{%- endfor -%}
{%- elif v is iterable and v is not string -%}
[{%- for w in v -%}{{ render(w, indent) }}{{ ', ' if not loop.last }}{%- endfor -%}]
{%- else -%}
{{ v }}
{%- endif -%}
{%- endmacro -%}
{{ render(tools[0]) }}
{{ render(d) }}
---
{%- set ns = namespace(is_first=true, tool=false, out='') -%}
{%- for m in messages -%}
{%- if m['role'] == 'system' -%}{%- set ns.out = ns.out + m['content'] -%}{%- endif -%}
{%- if not ns.is_first -%}|{%- endif -%}{%- set ns.is_first = false -%}{{ m['role'] }}
{%- endfor -%}
{{ ns.out }}
---
{% set x = 1 if undefined_name else 2 if n else 3 %}{{ x }}
---
{% for x in l -%}
  {{ x }}
{% endfor -%}
end
---
{% for i in range(3) %}{% for j in range(3) if j != i %}{{ loop.index }}{{ i }}{{ j }} {% endfor %}{% endfor %}
---
{% extends 'x' %}
---
{% include 'x' %}
---
{% import 'x' as y %}
---
{{ [1, 2, 3] | map('multiply', 2) | list }}
---
{{ s }}{% if s %}{% set s = 'inner' %}{% endif %}{{ s }}
---
{% set x = 0 %}{% if true %}{% set x = 1 %}{% for i in l %}{% set x = 2 %}{% endfor %}{% endif %}{{ x }}
---
{%- for message in messages %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ loop.index0 }}{% endif %}{% endfor %}
---
{{ messages[0].foo.bar }}
---
{{ messages[0]['foo'] is none }}{{ messages[0].foo is defined }}{{ messages[10] is defined }}
---
{{ messages[10].role }}
---
{{ 'x' * 3 if l else '' }}{{ '-' * 10 }}
---
{% set q = "a" "b" 'c' %}{{ q }}
---
{{ '\u00e9' == 'é' }}{{ '\n' | length }}{{ "\x41" }}
---
{{ 'multi
line' }}
---
{% for x in l %}{{ x }}
{% endfor %}
---
{% for x in l %}
{{ x }}
{%- endfor %}
---
{%- if true %} a {%- endif %} b
{%+ if true %} c {% endif %}
---
{% set ns = namespace(a=none) %}{% for x in l %}{% set ns.a = loop %}{{ loop == ns.a }}{% endfor %}
---
{% for x in l %}{{ loop == loop }}{{ loop is mapping }}{{ loop + 1 }}{% endfor %}
---
{% set ns = namespace(a=1) %}{{ ns() }}
---
{% for x in l %}{{ loop() }}{% endfor %}
---
{{ 'a' }} {% %}
---
{{ {{ 1 }} }}
---
{% if true %}{{ 1
---
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(1, 2, 3) }}
---
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(1, c=3) }}
---
{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(1, a=3) }}
---
{{ 'a'.replace(1) }}{{ 'a'.replace() }}
---
{{ 'a'.replace('a', old='b') }}
---
{% set a, b = 1 %}{{ a }}
---
{% set (a, b), c = (1, 2), 3 %}{{ a }}{{ b }}{{ c }}
---
{{ namespace(a=1, b='x') }}
"""


def cases() -> list[str]:
    lines = [line for line in EXPRESSIONS.split("\n") if line]
    return ["{{ " + line + " }}" for line in lines] + TEMPLATES.strip("\n").split("\n---\n")


def add_arguments(parser) -> None:
    parser.add_argument("--golden", action="store_true", help=f"write {GOLDEN.relative_to(ROOT)}")
    parser.add_argument("--binary", type=Path, help="the built example (default: builds it)")


def run(args) -> None:
    templates = cases()
    theirs = [rendered_by_jinja2(source, CONTEXT) for source in templates]
    if args.golden:
        entries = [{"template": source, "rendered": answer if isinstance(answer, str) else None}
                   for source, answer in zip(templates, theirs, strict=True)]
        lines = ",\n".join(json.dumps(entry) for entry in entries)
        GOLDEN.write_text(f'{{"context": {json.dumps(CONTEXT)},\n"cases": [\n{lines}\n]}}\n')
        print(f"{len(entries)} answers -> {GOLDEN}")
        return
    ours = common.answers(args.binary or common.example("render_chat"), (
        {"template": source, "bos": BOS, "eos": EOS, "context": CONTEXT} for source in templates))
    differ = 0
    for source, mine, other in zip(templates, ours, theirs, strict=True):
        if mine != other and not (isinstance(mine, dict) and isinstance(other, dict)):
            differ += 1
            print(f"  {source!r}: ours {mine!r}, jinja2 {other!r}")
    failing = sum(isinstance(other, dict) for other in theirs)
    print(f"{len(templates)} templates, of which {failing} fail in jinja2: {differ} differ")
    if differ:
        sys.exit(1)
