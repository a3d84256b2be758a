"""The static site: notebooks as executed, written pages, reference records, presets and this
reference, for a browser without a network.

==============  =======================================================================
``written``     the pages of ``notebooks/pages``: prose in git, numbers from the records
``pages``       the pages that are made: a record each, the presets, a module each
``sources``     all of these in one folder, which has the shape of the repository
``docstrings``  docstrings made the markup that they nearly are; signatures
``check``       what a page needs: a text for each image, and nothing from the network
``conf``        what Sphinx does with the folder
==============  =======================================================================

``python -m gaussmark_lib.site build/site`` (``make site``) builds it. Sphinx with MyST-NB: the one
generator that reads notebooks, Markdown and docstrings and checks the links between all of them,
without a JavaScript tool chain; furo is its theme in light and dark.
"""
