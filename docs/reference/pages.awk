# Doxygen's filter for Markdown files, which read well without it. Headings get the anchors that links name, after the name of their page. Links lead
# to pages, headings and headers of the reference; what is not part of it is named without a link.

FNR == 1 {
  page = FILENAME
  sub(/.*\//, "", page)
  page = tolower(substr(page, 1, length(page) - 3))
}
/^ *```/ { fenced = !fenced }
fenced { print; next }
/^# / { print page == "readme" ? $0 : $0 " {#" page "}"; next }
page == "readme" && /^### / { print "**" substr($0, 5) "**"; next }  # they are in the tree of pages
/^##+ / {
  anchor = $0
  sub(/^#+ /, "", anchor)
  anchor = tolower(anchor)
  gsub(/[^a-z0-9 _-]/, "", anchor)
  gsub(/ /, "-", anchor)
  again = repeated[page, anchor]++
  print $0 " {#" page "-" anchor (again ? "-" again : "") "}"
  next
}
{
  # Between single backticks a ' would end code that has one.
  n = split($0, part, "`")
  $0 = part[1]
  for (j = 2; j <= n; ++j) {
    ticks = part[j - j % 2] ~ /'/ ? "``" : "`"
    $0 = $0 ticks part[j]
  }
  while (match($0, /\[[^][]*\]\([^() ]+\)/)) {
    at = index(substr($0, RSTART), "](")
    text = substr($0, RSTART + 1, at - 2)
    target = substr($0, RSTART + at + 1, RLENGTH - at - 2)
    printf "%s%s", substr($0, 1, RSTART - 1), link(text, target)
    $0 = substr($0, RSTART + RLENGTH)
  }
  print
}

function link(text, target,   named, hash, heading) {
  if (target ~ /^https?:|\.svg$/) return "[" text "](" target ")"
  named = text
  hash = index(target, "#")
  heading = hash ? substr(target, hash + 1) : ""
  if (hash) target = substr(target, 1, hash - 1)
  gsub(/`/, "", text)
  if (target ~ /^include\/tutti\/[a-z_]+\.h$/) { sub(/.*\//, "", target); return "[" text "](@ref " target ")" }
  if (target !~ /^(\.\.\/)?(docs\/)?([A-Za-z-]+\.md)?$/) return named
  sub(/.*\//, "", target)
  sub(/\.md$/, "", target)
  target = target == "" ? page : tolower(target)
  if (heading != "") target = target "-" heading
  else if (target == "readme") target = "index"
  return "[" text "](@ref " target ")"
}
