"""Function words of English and Chinese, whose role is grammatical: a change of their meaning is rarely of interest."""

from __future__ import annotations

from collections.abc import Container

_ENGLISH = """
a about above across actually after afterwards again against ago ah ai ain ain't all almost alone along already
also although altogether always am amid among amongst an and another any anybody anyhow anyone anything anyway
anywhere are aren't around as aside at away back be because been before behind being below beneath beside
besides best better between beyond both but by can can't cannot could couldn't dare despite did didn't do does
doesn't doing don't done down due during each eight either eleven else elsewhere enough etc even ever every
everybody everyone everything everywhere except far few fewer fifteen fifth fifty first five for forth four
fourth from further furthermore gone gonna got gotta had hadn't half hardly has hasn't have haven't having he
hence her here hers herself him himself his how however hundred if ill in indeed instead into is isn't it its
itself just last late later latter lately least less lest let likewise little lo lot lots many may maybe me
meanwhile merely might million mine more moreover most mostly much must mustn't my myself nay near nearby nearly
needn't neither never nevertheless next nine no nobody none nonetheless nor not nothing notwithstanding now
nowadays nowhere o'clock of off often oh ok okay on once one ones oneself only onto or other others otherwise
ought our ours ourselves out outside over overall own per perhaps plus quite rather really regarding round said
same say says second seem seemed seems seldom several shall shalt shan't she should shouldn't since six sixth so
some somebody somehow someone something sometime sometimes somewhat somewhere soon still such ten than that the
thee their theirs them themselves then there thereby therefore therein thereof these they thine third this those
thou though thousand three through throughout thus thy till to today together tomorrow tonight too toward
towards twelve twenty twice two under unless unlike until unto up upon us usual usually versus very via was
wasn't we well were weren't what whatever when whence whenever where whereas whereby wherein wherever whether
which whichever while whilst whither who whoever whole whom whose why will with within without won't would
wouldn't ye yea yes yesterday yet you your yours yourself yourselves zero
"""
_CHINESE = """
一个 一些 一切 一定 一样 一次 一直 一种 一般 一起 上述 下列 不仅 不会 不但 不再 不同 不少 不得 不必 不是 不能
不过 与其 两个 之一 之下 之中 之前 之后 之外 之间 也是 也许 于是 什么 今天 今年 以上 以下 以便 以前 以及 以后
以外 以来 任何 仍然 从而 他们 他的 似乎 但是 何时 你们 你的 使得 例如 依照 便是 偶尔 全部 全都 关于 其中 其他
其余 其它 其实 几乎 几个 分别 刚刚 别人 到底 即使 即将 却是 又是 及其 及时 反而 另外 另一 只是 只有 只要 只能
可以 可是 可能 各个 各种 各自 同时 同样 后来 向来 否则 哪些 哪里 哪个 因为 因此 因而 在内 基本 大多 大家 大概
大约 她们 她的 如下 如何 如果 如此 完全 它们 它的 对于 将会 将要 尤其 就是 尽管 已经 常常 并且 并非 应当 应该
当中 当然 当时 彼此 往往 很多 必须 怎么 怎样 总是 总之 我们 我的 或者 所以 所有 所谓 按照 据说 整个 方面 无论
既然 时候 明天 昨天 是否 显然 曾经 最后 最近 有些 有关 有时 有的 本身 来自 极其 某些 某种 根据 此外 此后 正在
正是 每个 每次 比如 比较 没有 渐渐 然后 然而 现在 甚至 由于 的话 目前 直到 直接 相当 看来 真的 确实 立即 第一
第二 等等 终于 经常 经过 继续 而且 而是 能够 自己 自从 至于 至今 至少 虽然 许多 譬如 起来 越来 足以 较为 还是
还有 还要 这个 这些 这样 这种 这里 进行 连同 逐渐 通常 通过 那个 那些 那样 那里 那么 这么 部分 都是 随着 除了
除非 非常 首先 马上
"""
FUNCTION_WORDS = frozenset((_ENGLISH + _CHINESE).split())


def is_function_word(word: str, known: Container[str] = ()) -> bool:
    """Return whether a word, in lower case, is a function word, or an English adverb such as "slowly".

    Args:
        word: The word.
        known: Other words of the corpus. An English word in -ly is an adverb if it is among them without this ending.
            Words of up to four letters, such as "fly" and "holy", are not adverbs.
    """
    if word in FUNCTION_WORDS:
        return True
    return (
        len(word) > 4
        and word.endswith("ly")
        and (word[:-2] in known or f"{word[:-3]}y" in known or f"{word[:-2]}le" in known)
    )
