"""Writes tests/data/tokenizer_strings.json: the texts on which tokenizers are compared.

Most are written by hand, by what tends to go wrong; the rest are drawn from an alphabet of
awkward pieces with a fixed seed. Running this again gives the same file; after a change of the
file, run `python -m evidence agree tokens --golden` too.
"""

import json
import random
from pathlib import Path

from evidence.lib.common import ROOT

OUT = ROOT / "tests" / "data" / "tokenizer_strings.json"

WORDS = [
    "",
    "a",
    "Hello",
    " Hello",
    "Hello ",
    "Hello world",
    "Hello, world!",
    "hello World HELLO hELLO",
    "The quick brown fox jumps over the lazy dog.",
    "I'm sure you'll say it's what they've done; we'd better, she's 'tis y'all're don't DON'T I'LL",
    "'s 't 're 've 'm 'll 'd 'S 'T 'RE 'x ' '' ''' 'ſ",
    "it’s “quoted” — and – dashed… ‹so›",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "www.example.org/a_b-c?d=e&f=%20g#h user@example.org",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case dot.case",
    "a.b,c;d:e!f?g(h)i[j]k{l}m<n>o/p\\q|r~s`t@u#v$w%x^y&z*",
    "!!!!!! ?????? ...... ,,,,, ----- _____ ===== ##### *****",
    "(( )) [[ ]] {{ }} << >> \"\" '' ``",
    " !\" #$ %& '( )* +, -. /: ;< => ?@ [\\ ]^ _` {| }~",
    "a\u00a0b\u2003c\u3000d\u202fe\u1680f",
    "naïve café résumé Zürich Ångström façade",
    "nai\u0308ve cafe\u0301 re\u0301sume\u0301",
    "ÀÉÎÕÜ àéîõü ÇçÑñ ŠšŽž ŁłŻż ĞğİıŞş ẞß",
    "ﬁ ﬂ ﬀ ﬃ ｆｕｌｌ ｗｉｄｔｈ ①②③ ⅣⅫ ½⅓",
    "e=mc², H₂O, x³ + y⁴ ≤ ∞, ∑ᵢ αᵢ ≈ π·r²",
    "€100 £5.50 ¥1,000 ₹99 ₿0.1 $1,234,567.89",
    "50% 5‰ 90° 12′30″ №5 §3 ¶ † ‡ © ® ™",
]

NUMBERS = [
    "0", "1", "12", "123", "1234", "12345", "123456", "1234567", "12345678901234567890",
    "3.14159", "-273.15", "+1", "1e-10", "0x1F", "0b1010", "1_000_000", "1,000,000.00",
    "2026-11-21T13:37:00Z", "192.168.0.1", "v1.2.3-rc.4", "12 34 56", "1 2 3", " 7", "7 ",
    "٠١٢٣٤٥٦٧٨٩", "१२३४५", "一二三四五", "Ⅷ ⅷ ↂ", "²³¹ ₀₁₂", "１２３４", "1²3", "4½", "a1b2c3",
    "100000000000000000000000000000000000001", "007 0007 00007",
]

SPACES = [
    " ", "  ", "   ", "    ", "     ", " " * 8, " " * 15, " " * 16, " " * 17, " " * 31, " " * 33,
    " " * 64, " " * 100,
    "\n", "\n\n", "\n\n\n", "\n" * 10, "\n" * 32, "\n" * 40, "\t", "\t\t", "\t" * 9, "\r", "\r\n",
    "\r\n\r\n", "\n\r", " \n", "\n ", " \n ", "\n \n", "  \n  \n  ", "\t\n\t", " \t \t ", "\x0b\x0c",
    "a  b", "a   b", "a    b", "a\nb", "a\n\nb", "a \n b", "a\r\nb\r\n", "a\tb\t\tc", "  a", "   a",
    "    a", "a  ", "a   ", "a\n", "a\n\n", "a \n", "\na", " \na", "\n a", "\t a", " \ta",
    "line one\nline two\n\nline four\n    indented\n\tTabbed\n",
    "trailing   \nspaces  \n", "    four\n        eight\n            twelve",
    "a\u2028b\u2029c", "a\u0085b", "\u00a0", "\u00a0\u00a0", " \u00a0 ", "\u3000\u3000", "\u200b", "a\u200bb",
    "\ufeffbom", "a\ufeffb", "!\n", "!\n\n", " !\r\n", ")\n\n\n", "x /\n/", "1\n2\n3\n",
]

EMOJI = [
    "🚀", "😀😃😄", " 🚀", "🚀 ", "a🚀b", "👩‍💻", "👨‍👩‍👧‍👦", "🏳️‍🌈", "🏴‍☠️", "👍🏽", "🇩🇪🇯🇵", "❤️ ❤", "☃️☃", "1️⃣ #️⃣",
    "😶‍🌫️ (several joined) ✅", "🤷🏿‍♀️ 🧑🏻‍🤝‍🧑🏾", "🫠🫨🪿", "🦙.cpp", "(╯°□°)╯︵ ┻━┻", "¯\\_(ツ)_/¯", "★☆♥♦♣♠ ←↑→↓ ▁▂▃█",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
]

SCRIPTS = [
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Нещо на Български", "Ґанок, її, єдність", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "Ἐν ἀρχῇ ἦν ὁ λόγος",
    "זה כיף סתם לשמוע איך תנצח קרפד", "שָׁלוֹם", "نص حكيم له سر قاطع وذو شأن عظيم", "بِسْمِ ٱللَّهِ", "یہ اردو ہے",
    "ऋषियों को सताने वाले दुष्ट राक्षसों", "हिन्दी में क्ष त्र ज्ञ", "আমি বাংলায় গান গাই", "தமிழ் மொழி", "తెలుగు భాష", "ಕನ್ನಡ",
    "മലയാളം", "ไทยเขียนติดกันไม่มีช่องว่าง", "ພາສາລາວ", "ဗမာစာ", "កាន់តែពិសេសអាចខលចេញ", "བོད་ཡིག", "ᠮᠣᠩᠭᠣᠯ", "ქართული ენა",
    "Հայերեն", "አማርኛ", "ᏣᎳᎩ", "ᐃᓄᒃᑎᑐᑦ", "日本語の文章です。カタカナもひらがなも漢字も。", "ﾊﾝｶｸ ｶﾀｶﾅ", "我想在apple工作1314151天～", "简体中文与繁體中文",
    "한국어 문장입니다", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "Tiếng Việt: Cửa Việt, Nguyễn", "Türkçe: ığüşöç İI", "ꦧꦱꦗꦮ", "𐎀𐎁𐎂 𓀀𓀁 𝕳𝖊𝖑𝖑𝖔 𝟙𝟚𝟛",
    "𠀀𠀁𪛖 㐀㐁", "Ｆｕｌｌ　Ｗｉｄｔｈ", "mixed русский und Deutsch と日本語 and العربية", "עברית and English 123 מעורב",
    "a\u0300\u0301\u0302\u0303b", "Z̸̢̛a̷͎͐l̵̳̈g̶̰̈́o̷͕͝", "\u0301", " \u0301", "!\u0301", "\u0e33\u0e4d", "\U000e0001\U0001f9ff", "\ue000\uf8ff", "\ufffd\ufffe",
]

CODE = [
    "def f(x):\n    return x ** 2 if x > 0 else -x\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 2.0f; }",
    "fn main() {\n\tprintln!(\"{:?}\", vec![1, 2, 3]);\n}\n",
    "SELECT * FROM t WHERE a='b' AND c<>1;--x",
    "#include <stdio.h>\r\nint main(void)\r\n{\r\n\treturn 0;\r\n}\r\n",
    "<html><body class=\"a b\"><p>Hi&nbsp;there</p><br/></body></html>",
    "<b>bold</b> <i>it</i> <s>gone</s> <table><tr><td>1</td></tr></table> <h1>x</h1> <code>y</code>",
    "{\"a\": [1, 2.5, null, true], \"b\": {\"c\": \"\\u00e9\\n\"}}",
    "```python\nprint('hi')\n```\n", "$ ls -la | grep foo > /dev/null 2>&1 && echo $?", "a==b!=c<=d>=e&&f||g=>h->i::j:=k...l",
    "\\begin{align} \\frac{a}{b} &= \\sqrt{x} \\\\ \\end{align}", "/* c */ // c\n# c\n-- c\n% c\n; c\n", "x=lambda*a,**k:(a,k)",
    "https://example.org:8080/path/to/file.html?q=1&r=%E2%9C%93", "C:\\Users\\x\\file.txt", "/usr/local/bin/python3.11", "#!/bin/sh\nset -eu\n",
    "if(a){b()}else{c()}", "0xDEADBEEF 0o777 1e9f 1_000u64", "\t\tif x:\n\t\t\ty()\n", "@decorator\nclass A(B, metaclass=C): ...",
    "a\\n\\t\\\"b", "%d %s %5.2f %%", "${var} $(cmd) `cmd` {{tpl}} {% tag %}", "| a | b |\n|---|---|\n| 1 | 2 |\n", "- item\n  - sub\n* star\n1. one\n",
    "-----BEGIN-----\nQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWZn\n-----END-----",
]

# Spellings of special tokens of both models and of others, whole, broken and in context.
SPECIAL = [
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "</s>", "<s>", "[multimodal]",
    "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<unused0>", "<unused99>", "<unused6241>", "<unused6242>", "<|unused|>",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
    "<bos><bos>", "<bos> <eos>", " <bos>", "<bos>Hello", "Hello<eos>", "Hello <eos> world", "<|im_end|><|im_end|>", "<|im_start|><|im_start|",
    "<|im_start", "|im_end|>", "<<|im_end|>>", "<|im_end|", "im_end", "< |im_end|>", "<|IM_END|>", "<bos", "bos>", "<<bos>>", "< bos >",
    "<repo_name>a/b<file_sep>c.py\nx<reponame>", "<filename>x<gh_stars>100", "<issue_start>a<issue_comment>b<issue_closed>",
    "<jupyter_start>1<jupyter_text>2<jupyter_code>3<jupyter_output>4<jupyter_script>5<empty_output>", "<|eot_id|><|start_header_id|>",
    "<0x41>", "<0x0A><0xFF>", "<0xGG> <0x-1>", "▁", "▁▁", "▁the", "a▁b", "the▁ cat ▁▁ sat", "Ġthe Ċ ĉ", "[toxicity] [@BOS@]", "<image_soft_token>",
    "</table></td></h1></b>", "<h1><h2><h3><h4><h5><h6>", "<td>\n<td>", "<ul>\n\n<li>", "<blockquote>a</blockquote>", "<sub>1</sub><sup>2</sup>", "<strong>x</strong>",
    "<unused1><unused2> <unused3>\n<unused4>", "\n<bos>\n", "<eos>\n\n", "<|endoftext|>\n\nNew document", "</s></s>", "a</s>b", "<a><b><c><d><e>",
]

CONTROL = [
    "\x00", "a\x00b", "\x01\x02\x03\x04\x05\x06\x07\x08", "\x0e\x0f\x10\x11\x12\x13\x14", "\x1b[31mred\x1b[0m", "\x7f", "a\x7fb", "\x80\x81\x9f",
    "\u00ad soft\u00adhyphen", "\u200e\u200f\u202a\u202e\u2066\u2069", "\u2060\u2061\ufe0f", "bell\x07 back\x08 form\x0c", "\x1c\x1d\x1e\x1f", "\ufff9\ufffa\ufffb",
]

LONG = [
    "a" * 100, "ab" * 60, "A" * 70, "é" * 50, "日" * 50, "1" * 50, "🚀" * 20, "!" * 70, "=" * 80, "-" * 65, "\n " * 30, " \n" * 30, "a " * 50, ". " * 40,
    "aaaaaaaaab" * 12, "ha" * 30 + "!", "loooooooooooooooooooooong", "Buffalo buffalo " * 8, "the " * 40, "0" * 33 + "1",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, "
    "it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of Darkness.",
]

PIECES = (
    "a e the ing Z X 1 23 456 ' 's \" . , ! ? ( ) - _ / \\ : ; < > = + * & % $ # @ ^ ~ ` | { } [ ]".split()
    + [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "é", "ß", "ж", "д", "中", "文", "の", "カ", "한", "ا", "ب", "ह", "ि", "์", "🚀", "👩‍💻", "\u0301"]
    + ["\u200d", "\ufe0f", "\u00a0", "\u3000", "²", "½", "٣", "—", "“", "”", "…", "€", "▁", "\x00", "\x1b", "<bos>", "<|im_end|>", "<b>", "Hello", " world"]
)


def add_arguments(parser) -> None:
    parser.add_argument("--out", type=Path, default=OUT)


def run(args) -> None:
    rng = random.Random(20261121)
    drawn = ["".join(rng.choices(PIECES, k=rng.randint(2, 30))) for _ in range(80)]
    texts = WORDS + NUMBERS + SPACES + EMOJI + SCRIPTS + CODE + SPECIAL + CONTROL + LONG + drawn
    texts = list(dict.fromkeys(texts))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(text) for text in texts)
    args.out.write_text(f"[\n{lines}\n]\n", encoding="ascii")
    print(f"{len(texts)} texts -> {args.out}")
