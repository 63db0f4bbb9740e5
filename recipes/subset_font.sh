#!/usr/bin/env bash
# Build src/elmo/plots/fonts/cjk.ttf, the fallback font for Chinese characters in pictures.
#
# Source: Droid Sans Fallback (Google, Apache License 2.0), from Debian's package fonts-droid-fallback.
# Characters: GB 2312 (symbols, kana and the 3,755 most frequent simplified characters, level 1) and level 1
# of Big5 (the 5,401 most frequent traditional characters). Hinting and layout tables are dropped.
# Needs a Debian or Ubuntu system with apt-get, dpkg-deb and python3-venv. The result depends only on the
# version of the package and of fontTools.
set -euo pipefail
target="$(cd "$(dirname "$0")/.." && pwd)/src/elmo/plots/fonts"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cd "$work"
apt-get download fonts-droid-fallback
dpkg-deb -x fonts-droid-fallback_*.deb package
python3 -m venv venv
venv/bin/pip install --quiet fonttools==4.60.1
mkdir -p "$target"
cp /usr/share/common-licenses/Apache-2.0 "$target/LICENSE.txt"
venv/bin/python - package/usr/share/fonts/truetype/droid/DroidSansFallbackFull.ttf "$target/cjk.ttf" <<'PYTHON'
import sys
from fontTools import subset
from fontTools.ttLib import TTFont

source, target = sys.argv[1:]


def decode(codec, rows, cells):
    for row in rows:
        for cell in cells:
            try:
                yield bytes([row, cell]).decode(codec)
            except UnicodeDecodeError:
                pass  # no character has this code


gb2312 = set(decode("gb2312", range(0xA1, 0xD8), range(0xA1, 0xFF)))
big5 = set(decode("big5", range(0xA1, 0xC7), [*range(0x40, 0x7F), *range(0xA1, 0xFF)]))
latin = {chr(code) for code in range(0x20, 0x7F)}  # Chinese text may contain letters and digits

options = subset.Options()
options.hinting = False
options.layout_features = []
options.drop_tables += ["GSUB", "GPOS", "GDEF", "vhea", "vmtx", "DSIG"]
options.glyph_names = False
options.name_IDs = [0, 1, 2, 3, 4, 5, 6, 7, 13, 14]
font = TTFont(source, recalcTimestamp=False)
subsetter = subset.Subsetter(options)
subsetter.populate(text="".join(sorted(gb2312 | big5 | latin)))
subsetter.subset(font)
# Rename the font, because the license requires changes to be stated and the original may be installed as well.
for record in font["name"].names:
    names = {1: "elmo CJK", 3: "elmo CJK, subset of Droid Sans Fallback", 4: "elmo CJK", 6: "elmoCJK"}
    if record.nameID in names:
        font["name"].setName(
            names[record.nameID], record.nameID, record.platformID, record.platEncID, record.langID
        )
font.save(target)
print(f"{target}: {len(font.getBestCmap())} characters")
PYTHON
ls -l "$target"
