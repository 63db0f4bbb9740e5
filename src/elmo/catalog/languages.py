"""The names of the languages of published models, to search for them."""

from __future__ import annotations

# code: in English, in the language itself, in Chinese
LANGUAGES: dict[str, tuple[str, str, str]] = {
    "ar": ("Arabic", "العربية", "阿拉伯语"),
    "bg": ("Bulgarian", "български", "保加利亚语"),
    "ca": ("Catalan", "català", "加泰罗尼亚语"),
    "cs": ("Czech", "čeština", "捷克语"),
    "cu": ("Old Church Slavonic", "словѣньскъ", "古教会斯拉夫语"),
    "da": ("Danish", "dansk", "丹麦语"),
    "de": ("German", "Deutsch", "德语"),
    "el": ("Greek", "ελληνικά", "希腊语"),
    "en": ("English", "English", "英语"),
    "es": ("Spanish", "español", "西班牙语"),
    "et": ("Estonian", "eesti", "爱沙尼亚语"),
    "eu": ("Basque", "euskara", "巴斯克语"),
    "fa": ("Persian", "فارسی", "波斯语"),
    "fi": ("Finnish", "suomi", "芬兰语"),
    "fr": ("French", "français", "法语"),
    "ga": ("Irish", "Gaeilge", "爱尔兰语"),
    "gl": ("Galician", "galego", "加利西亚语"),
    "grc": ("Ancient Greek", "ἑλληνική", "古希腊语"),
    "he": ("Hebrew", "עברית", "希伯来语"),
    "hi": ("Hindi", "हिन्दी", "印地语"),
    "hr": ("Croatian", "hrvatski", "克罗地亚语"),
    "hu": ("Hungarian", "magyar", "匈牙利语"),
    "id": ("Indonesian", "Bahasa Indonesia", "印尼语"),
    "it": ("Italian", "italiano", "意大利语"),
    "ja": ("Japanese", "日本語", "日语"),
    "ko": ("Korean", "한국어", "韩语"),
    "la": ("Latin", "Latina", "拉丁语"),
    "lt": ("Lithuanian", "lietuvių", "立陶宛语"),
    "lv": ("Latvian", "latviešu", "拉脱维亚语"),
    "mul": ("several languages", "several languages", "多种语言"),
    "nb": ("Norwegian Bokmål", "bokmål", "书面挪威语"),
    "nl": ("Dutch", "Nederlands", "荷兰语"),
    "nn": ("Norwegian Nynorsk", "nynorsk", "新挪威语"),
    "no": ("Norwegian", "norsk", "挪威语"),
    "pl": ("Polish", "polski", "波兰语"),
    "protein": ("proteins", "proteins", "蛋白质"),
    "pt": ("Portuguese", "português", "葡萄牙语"),
    "ro": ("Romanian", "română", "罗马尼亚语"),
    "ru": ("Russian", "русский", "俄语"),
    "sk": ("Slovak", "slovenčina", "斯洛伐克语"),
    "sl": ("Slovenian", "slovenščina", "斯洛文尼亚语"),
    "sv": ("Swedish", "svenska", "瑞典语"),
    "ta": ("Tamil", "தமிழ்", "泰米尔语"),
    "tr": ("Turkish", "Türkçe", "土耳其语"),
    "ug": ("Uyghur", "ئۇيغۇرچە", "维吾尔语"),
    "uk": ("Ukrainian", "українська", "乌克兰语"),
    "ur": ("Urdu", "اردو", "乌尔都语"),
    "vi": ("Vietnamese", "Tiếng Việt", "越南语"),
    "zh": ("Chinese", "中文", "汉语"),
    "zh-Hans": ("Simplified Chinese", "简体中文", "简体汉语"),
    "zh-Hant": ("Traditional Chinese", "繁體中文", "繁体汉语"),
}
_VARIANTS = {"zh": ("zh-Hans", "zh-Hant"), "no": ("nb", "nn")}  # a search for the first finds the others too


def find_languages(text: str) -> frozenset[str]:
    """Return the codes of the languages with this code or name, in any of the three languages of the table."""
    wanted = text.strip().casefold()
    codes = {code for code, names in LANGUAGES.items() if wanted in (code.casefold(), *(n.casefold() for n in names))}
    return frozenset(codes.union(*(_VARIANTS.get(code, ()) for code in codes)))


def language_name(code: str | None) -> str:
    """Return the English name of a language."""
    return LANGUAGES[code][0] if code else "not stated"
