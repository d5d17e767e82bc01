"""An SVG picture for the documentation, used by the scripts that draw: shapes and text in colours for light and dark
pages, with a title and a description for screen readers. Coordinates are pixels from the upper left corner."""
from html import escape

# name: (on a light page, on a dark page)
COLOURS = {
    "ink": ("#1f2430", "#e3e6ee"), "faint": ("#5f6776", "#a4adbd"), "line": ("#8b93a3", "#7c8699"),
    "paper": ("#ffffff", "#1e2129"), "box": ("#e9edf5", "#313744"), "compute": ("#9db8d9", "#41608a"),
    "wait": ("#f0d3d4", "#5a3237"), "first": ("#b3541e", "#f0a06c"), "second": ("#2e7d4f", "#7cc79b"),
    "third": ("#6b4fa0", "#b9a3e3"),
}


class Picture:
    def __init__(self, width, height, title, description, font="sans-serif", size=13):
        self.width, self.height, self.title, self.description = width, height, title, description
        self.font, self.size, self.shapes = font, size, []

    def text(self, x, y, text, colour="ink", anchor="start", bold=False):
        weight = ' font-weight="bold"' if bold else ""
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{colour}" text-anchor="{anchor}"{weight}>{escape(text)}</text>')

    def typed(self, x, y, text, width, colour="ink"):
        """Text with its spaces, as wide as given whichever font there is."""
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{colour}" style="white-space:pre" textLength="{width:g}" '
                           f'lengthAdjust="spacingAndGlyphs">{escape(text)}</text>')

    def box(self, x, y, width, height, colour="box", border=None, dashed=False):
        style = f' stroke="var(--{border})"' if border else ""
        style += ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" class="{colour}"{style}/>')

    def line(self, points, colour="line", arrows="", width=1.5, dashed=False):
        """A line through points; `arrows` names its ends with an arrow: "end", "both" or "" for none."""
        path = "M" + " L".join(f"{x:g},{y:g}" for x, y in points)
        ends = ' marker-end="url(#arrow)"' if arrows else ""
        ends += ' marker-start="url(#arrow)"' if arrows == "both" else ""
        ends += ' stroke-dasharray="5 4"' if dashed else ""
        self.shapes.append(f'<path d="{path}" fill="none" stroke="var(--{colour})" stroke-width="{width:g}"{ends}/>')

    def __str__(self):
        def named(which):
            return "".join(f"--{name}:{pair[which]};" for name, pair in COLOURS.items())

        classes = "".join(f".{name}{{fill:var(--{name})}}" for name in COLOURS)
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" width="{self.width:g}" '
            f'height="{self.height:g}" font-family="{self.font}" font-size="{self.size}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(self.title)}</title>', f'<desc id="d">{escape(self.description)}</desc>',
            f"<style>svg{{{named(0)}}}@media(prefers-color-scheme:dark){{svg{{{named(1)}}}}}{classes}</style>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="context-stroke"/></marker></defs>',
            '<rect width="100%" height="100%" class="paper"/>', *self.shapes, "</svg>"])
