# SPDX-License-Identifier: MIT
"""Four JPEG files of 24 x 16 pixels and the CRC-32 of the RGB pixels that Pillow 13.0.0 decodes. Made by

    y, x = numpy.mgrid[0:16, 0:24]
    a = numpy.stack([(x * 10 + i * 13) % 256, (y * 15 + i * 40) % 256, ((x + y) * 6 + i * 60) % 256], -1)
    Image.fromarray(a.astype(numpy.uint8)).save(file, "JPEG", quality=80, subsampling=0)    # for i in range(4)
    zlib.crc32(numpy.asarray(Image.open(file).convert("RGB")).tobytes())
"""
import base64
import zlib

WIDTH, HEIGHT = 24, 16

_TABLE = [
    (1029627388, """
eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdAV8NA
VUNTA2QIIzs7OxcHlzAXl7CGlJiUBsng/wEGQQ4GAQYJZkZBBiZBRmZBxv9HGOSB7mRlBAMGKGBkYga6l52Dk4sbqGCrAAMTIzMzEwszKysLC1C2FijP
wCLIKqRo6MgmHJjIrlQoYtQ4cSGHstPGg6JBFz+oGCcVNXFyiYlLSEqpqqlraGqZmJqZW1haObu4url7eHoFh4SGhUdERiWnpKalZ2RmFZeUlpVXVFY1
t7S2tXd0dk2aPGXqtOkzZs5atHjJ0mXLV6xctWnzlq3btu/YuevQ4SNHjx0/cfLUpctXrl67fuPmrYePHj95+uz5i5evPn76/OXrt+8/fv4C+YuRgZkR
BrD6CxgIjEwsLMws7CB/MTKVgxQIsrAqGrIJOQayJxYKKxk1cog4TVy48SCnsnHQB9GkootcYiomD1U/grwG9hlxHmsiy2dwjyH8dYuBh5kRGHnMggz2
DB91rQ/PtfO/tEjUL0cu9VnJr/J2q5r5S8ucVn61sDl95uWX93wlP+293rQGvyqonD5z/fKK4uUnf4WfOrTyz/3mM3vOzff78Nx/8pd1J0LtlrPPrJxr
N/fhufnqL2MnrKoN4zf6bP//JgB/bP3D
"""),
    (1732050893, """
eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdAV8NA
VUNTA2QIIzs7OxcHlzAXl7CGlJiUBsng/wEGQQ4GAQYJZkZBBiZBRmZBxv9HGOSB7mRlBAMGKGBkYga6l52Dk4sbqGCrAAMTIzMzEwszKysLC1C2FijP
wCLIKqRo6MgmHJjIrlQoYtQ4cSGHstPGg6JBFz+oGCcVNXFyiYlLSEqpqqlraGqZmJqZW1haObu4url7eHoFh4SGhUdERiWnpKalZ2RmFZeUlpVXVFY1
t7S2tXd0dk2aPGXqtOkzZs5atHjJ0mXLV6xctWnzlq3btu/YuevQ4SNHjx0/cfLUpctXrl67fuPmrYePHj95+uz5i5evPn76/OXrt+8/fv4C+YuRgZkR
BrD6CxgIjEwsLMws7CB/MTKVgxQIsrAqGrIJOQayJxYKKxk1cog4TVy48SCnsnHQB9GkootcYiomD1U/grwG9hlxHmsiy2dwjyH8dYuBh5kRGHnMggz2
DJ//Wh+ea+d/affCkI8FldNnXsm8J/PyU93Um1zLrzz4rG+8/PIey8tP/mpvEvVfefBZXHLJyz+2x//4bVn/h7v/T/bBNn7x/wx2S/8zNOz/ZD9/Q8nH
+5+f1f/g/s+gvPzy8g/f5T9aXdr/Qc/+47oTCR/rP7+KB0u9KkBSl5FVJ9vA0h99yWf5v3mPf9ZH/dynfO6jZUrd+vbl6pH/GUpvae++XHf62ZdN9cnT
HhZe3lySnv8BaNn/mwCh3DVy
"""),
    (652089854, """
eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdAV8NA
VUNTA2QIIzs7OxcHlzAXl7CGlJiUBsng/wEGQQ4GAQYJZkZBBiZBRmZBxv9HGOSB7mRlBAMGKGBkYga6l52Dk4sbqGCrAAMTIzMzEwszKysLC1C2FijP
wCLIKqRo6MgmHJjIrlQoYtQ4cSGHstPGg6JBFz+oGCcVNXFyiYlLSEqpqqlraGqZmJqZW1haObu4url7eHoFh4SGhUdERiWnpKalZ2RmFZeUlpVXVFY1
t7S2tXd0dk2aPGXqtOkzZs5atHjJ0mXLV6xctWnzlq3btu/YuevQ4SNHjx0/cfLUpctXrl67fuPmrYePHj95+uz5i5evPn76/OXrt+8/fv4C+YuRgZkR
BrD6CxgIjEwsLMws7CB/MTKVgxQIsrAqGrIJOQayJxYKKxk1cog4TVy48SCnsnHQB9GkootcYiomD1U/grwG9hlxHmsiy2dwjyH8dYuBh5kRGHnMggz2
DGcv77G8/OSv9v3W4CcfKqfPvPzynszLT3VTb3Itv5rwWd8oNtvr/uL4o1x/9qdPMOb7z6D5oDr8+c/v4n+TNh1MWPouVtOzdm1Z/N13/66dvvtj36R9
ejdLK71/qv5nWLJ5yuV9qiX/GbqK/zOo2/+OrVvKJ/GfYfn9n/r/GXLqkpsfzv/V8Z/hZP3vZPd/Ysf+M9x1fnh/+mKDPa/f2Jdf2m/5KPNv0g8d0fri
TE/3R5/ivh+++3ft9N0fa7dFHgrbshSiM+nq9SPrf0yOrz9q+Z9B71P96ee/1f/NvH7iwY/k7xf+fg/9VvOf4UitmHVb/UOr/b/db0y/+e/1v4//bwIA
/0pauw==
"""),
    (3289200745, """
eNr7f+P/AwYBLzdPNwZGRgYGRiBk+H+bwZmBjYWVjZWFjY2VjZ2djYNLgIuLk5NLhI+fR0BcREJCXERMTEpWVV5KWllGTExBR0FZTV1TS1NSXtdAV8NA
VUNTA2QIIzs7OxcHlzAXl7CGlJiUBsng/wEGQQ4GAQYJZkZBBiZBRmZBxv9HGOSB7mRlBAMGKGBkYga6l52Dk4sbqGCrAAMTIzMzEwszKysLC1C2FijP
wCLIKqRo6MgmHJjIrlQoYtQ4cSGHstPGg6JBFz+oGCcVNXFyiYlLSEqpqqlraGqZmJqZW1haObu4url7eHoFh4SGhUdERiWnpKalZ2RmFZeUlpVXVFY1
t7S2tXd0dk2aPGXqtOkzZs5atHjJ0mXLV6xctWnzlq3btu/YuevQ4SNHjx0/cfLUpctXrl67fuPmrYePHj95+uz5i5evPn76/OXrt+8/fv4C+YuRgZkR
BrD6CxgIjEwsLMws7CB/MTKVgxQIsrAqGrIJOQayJxYKKxk1cog4TVy48SCnsnHQB9GkootcYiomD1U/grwG9hlxHmsiy2dwjyH8dYuBh5kRGHnMggz2
DLc2ffh1bPZch8Ar16+EHQ86dGlq1aenPeX11x9sz3epkeM2KMpUulNlHbPjJ0dPSfyr7E863ztXPRfN2Xsr8Efyr/32B3XFw/691zumlV3rWeP48PyP
5Xr7/N+V/WfIzZ6us/rfRfn5T86tUz6z/6Hctv2n/zMsdfmk8Sf7Mfd0+Y/GSoYX687yP6vz+h3zbZ+wxepU/2lT6iTuxVdfrweZ+mfObpVTK9c/fP1P
s37m3uUVq4/eqT9y+T+DauJ/hkfaJ9u8p/9nOL//WPyz2jp+zVP/GZ7f/+er/1nvR/PROr3/DC1Fr/+pzb/zn2F6RP2+/W/CN05L2Vl/Tfn3vr+pN3/O
+igXPPU/Q/K1v/c//V1Zb1Jz/v9NAODcXnk=
"""),
]

#: (CRC-32 of the pixels, bytes of the file)
PICTURES = [(crc, zlib.decompress(base64.b64decode(text))) for crc, text in _TABLE]
