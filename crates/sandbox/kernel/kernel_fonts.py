"""Fonts of charts: for characters that a text's own font lacks."""


def complete(font_manager):
    """Has every text fall back to the fonts of the default setting, also one in a font that a program or a style chose."""
    manager = font_manager.FontManager
    find = getattr(manager, "_find_fonts_by_props", None)
    if find is None:
        return

    def find_fonts(self, prop, fontext="ttf", *arguments, **options):
        import matplotlib

        found = find(self, prop, fontext, *arguments, **options)
        for family in matplotlib.rcParamsDefault["font.family"][1:] if fontext == "ttf" else []:
            wanted = prop.copy()
            wanted.set_family(family)
            try:
                path = self.findfont(wanted, fontext, fallback_to_default=False, rebuild_if_missing=False)
            except ValueError:
                continue  # the template lacks it
            if path not in found:
                found.append(path)
        return found

    manager._find_fonts_by_props = find_fonts
