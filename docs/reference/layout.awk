# Doxygen's layout. The pages come from the section "More" of README.md, which lists them in groups: awk -f layout.awk README.md

/^## / { listing = /^## More/ }
listing && /^### / { group(substr($0, 5)) }
listing && match($0, /^- \[[^]]*\]\([A-Za-z\/-]+\.md\)/) {
  file = $0
  sub(/^[^(]*\(/, "", file)
  sub(/\).*/, "", file)
  page(file)
}

BEGIN {
  print "<doxygenlayout version=\"1.0\">\n<navindex>"
  print "<tab type=\"mainpage\" visible=\"yes\" title=\"Overview\"/>"
}

END {
  group("Reference")
  print "<tab type=\"classlist\" visible=\"yes\" title=\"Classes\"/>"
  print "<tab type=\"filelist\" visible=\"yes\" title=\"Headers\"/>"
  print "<tab type=\"user\" visible=\"yes\" url=\"@ref tutti\" title=\"Functions, enums and constants\"/>"
  print "</tab>\n</navindex>"
  # What a thing is for comes before its members.
  print "<class><detaileddescription title=\"\"/><includes visible=\"yes\"/><memberdecl><nestedclasses visible=\"yes\" title=\"\"/>"
  n = split("publictypes publicmethods publicstaticmethods publicattributes publicstaticattributes protectedtypes protectedmethods protectedstaticmethods " \
    "protectedattributes related", kinds, " ")
  for (i = 1; i <= n; ++i) print "<" kinds[i] " title=\"\"/>"
  print "</memberdecl><memberdef><typedefs title=\"\"/><enums title=\"\"/><constructors title=\"\"/><functions title=\"\"/><related title=\"\"/>" \
    "<variables title=\"\"/></memberdef></class>"
  scope("namespace", "")
  scope("file", "<classes visible=\"yes\" title=\"\"/>")
  print "</doxygenlayout>"
}

function group(title) {
  if (opened++) print "</tab>"
  print "<tab type=\"usergroup\" visible=\"yes\" url=\"[none]\" title=\"" title "\">"
}

function page(file,   name, title) {
  getline title < (folder file)
  sub(/^# /, "", title)
  gsub(/`/, "", title)
  gsub(/&/, "\\&amp;", title)
  name = file
  sub(/.*\//, "", name)
  sub(/\.md$/, "", name)
  print "<tab type=\"user\" visible=\"yes\" url=\"@ref " tolower(name) "\" title=\"" title "\"/>"
}

function scope(what, classes) {
  print "<" what "><detaileddescription title=\"\"/><memberdecl>" classes "<concepts visible=\"yes\" title=\"\"/><typedefs title=\"\"/>" \
    "<enums title=\"\"/><functions title=\"\"/><variables title=\"\"/></memberdecl><memberdef><inlineclasses title=\"\"/><typedefs title=\"\"/>" \
    "<enums title=\"\"/><functions title=\"\"/><variables title=\"\"/></memberdef></" what ">"
}
