# Doxygen's filter for headers, whose comments are plain. It makes documentation
# - of the comment at the top: of the file,
# - of a comment before declarations: of all of them, up to the next blank line, comment or access specifier,
# - of a comment behind a declaration: of that one.
# Of declarations that share a comment the last one shows it; the style sheet hides it at the others. Constructors, operators and aliases
# without a comment are described by their class. What needs no words is left out: destructors, friends, what is defaulted or deleted, copying and
# moving, declarations that a definition follows, specialisations, and namespaces named detail.

{ line[NR] = $0 }

END {
  for (i = 1; i <= NR; ++i) read_line(line[i])
  for (i = 1; i <= NR; ++i)
    if (i in hidden) print ""
    else if (!(i in moved)) print before[i] line[i]
}

function trim(text) { gsub(/^ +| +$/, "", text); return text }

function hide(a, b) { for (; a <= b; ++a) hidden[a] = 1 }

# Scopes are numbered by depth: kind "namespace", "class", "enum" or "body", which is anything else in braces. `head` is the declaration
# that has begun, on line `start`.
function read_line(text,   code, at) {
  if (head == "" && kind[depth] != "body") {
    if (text ~ /^ *\/\//) { read_comment(text); return }
    if (text ~ /^#pragma once/) document_file()
    if (text ~ /^#|^ *$|^ *(public|protected|private):$/) { end_group(); return }
  }
  code = text
  while (match(code, /"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/))  # nothing in them is code
    code = substr(code, 1, RSTART - 1) sprintf("%" RLENGTH "s", "") substr(code, RSTART + RLENGTH)
  at = index(code, "//")
  ended = 0
  read_code(at ? substr(code, 1, at - 1) : code)
  if (at && (ended || head != "" && start == i)) note[ended ? ended : count + 1] = trim(substr(text, at + 2))
  if (head != "") head = trim(head) " "
}

# A comment on lines of its own begins a group of declarations.
function read_comment(text) {
  if (size) end_group()
  sub(/^ *\/\/ ?/, "", text)
  comment[++lines] = text
  comment_at[lines] = i
}

function read_code(code,   c) {
  while (match(code, /[{}();,]/)) {
    extend(substr(code, 1, RSTART - 1))
    c = substr(code, RSTART, 1)
    code = substr(code, RSTART + 1)
    if (c == "{") open_scope()
    else if (c == "}") close_scope(code)
    else if (c != "(" && c != ")" && !parens && kind[depth] != "body" && (c == ";" || kind[depth] == "enum")) declare(c)
    else if (kind[depth] != "body") {
      parens += (c == "(") - (c == ")")
      extend(c)
    }
  }
  extend(code)
}

function extend(code) {
  if (kind[depth] == "body") return
  if (head == "") {
    sub(/^ +/, "", code)
    start = i
  }
  head = head code
}

function open_scope(   opened, named, begins) {
  opened = "body"
  if (kind[depth] != "body" && !parens && head !~ /[(=]/ && head ~ /(^|[^A-Za-z_])(namespace|class|struct|union|enum|extern)( |$)/) {
    opened = head ~ /(^| )enum / ? "enum" : head ~ /^(namespace|extern)/ ? "namespace" : "class"
    named = head
    sub(/ +:[^:].*/, "", named)
    named = trim(named)
    if (opened == "class" && named ~ />$/ || named ~ /^namespace (.*::)?detail$/) begins = start
    sub(/.*[ :]/, "", named)
    if (opened == "namespace" && lines) { before[start] = doc(); move_comment(1) }
    else if (opened != "namespace" && !begins) declare("{")
    end_group()
    head = ""
  }
  ++depth
  kind[depth] = opened
  name[depth] = named
  hides_from[depth] = begins
  saved_parens[depth] = parens
  parens = 0
}

function close_scope(rest,   closed) {
  closed = kind[depth]
  if (closed == "enum" && trim(head) != "") declare(",")
  if (closed != "body") end_group()
  tail_from = hides_from[depth]
  if (tail_from) hide(tail_from, i)
  parens = saved_parens[depth]
  delete kind[depth--]
  if (closed == "namespace") head = ""
  else if (closed != "body") { head = "}"; start = i }
  else if (kind[depth] != "body") {
    # A body ends its function, unless it is that of a requires-expression, or an initialiser.
    if (!parens && rest ~ /^ *$/ && !asks()) declare("}")
    else head = head "{}"
  }
}

# Does `head` end with "requires", or with that and its parameters?
function asks(   text) {
  text = head
  if (!sub(/.*requires/, "", text)) return 0
  while (gsub(/\([^()]*\)/, "", text)) continue
  return text ~ /^ *$/
}

# `head` is a whole declaration, ended by `c`.
function declare(c,   text, own) {
  text = trim(head)
  own = kind[depth] == "class" ? name[depth] : "-"
  head = ""
  if (text ~ /^}/ || text == "") {  # the end of a class
    if (tail_from) hide(start, i)
    return
  }
  if (text ~ /= *(delete|default)$/ || text ~ /(^| )~/ || text ~ /^(template <.*> )?friend / ||
      c == ";" && text ~ /^(class|struct|union|enum) [A-Za-z_:0-9 ]*$/ || text ~ /^using [^=]*$/ ||
      kind[depth] == "namespace" && text ~ /\) *->/ || text ~ /operator=\(/ ||
      text ~ ("(^| )" own "\\((const )?" own "( ?&&?)[^,]*\\)")) {
    hide(start, i)
    return
  }
  from[++count] = start
  plain[count] = own != "-" && text ~ ("(^| )" own "\\(|(^| )operator|^using ")
  if (text ~ /^(template <.*> )?using |^typedef/) section[count] = "type"
  else if (c == "{") section[count] = "scope"
  else section[count] = (text ~ /(^|> )static /) (text ~ /^[^=]*\(/)
  group[++size] = count
  ended = count
}

# Writes the comment of the group before its declarations.
function end_group(   j, k, text) {
  for (j = 1; j <= size; ++j) {
    k = group[j]
    if (k in note) text = (j == 1 && lines ? doc() : "") one_line(note[k], "")
    else if (lines && j < size && !(group[j + 1] in note) && section[k] == section[group[j + 1]]) text = one_line(first_paragraph(), "shared")
    else if (lines) text = doc()
    else if (plain[k]) text = one_line("See the class", "plain")
    else text = ""
    before[from[k]] = before[from[k]] text
  }
  if (size) move_comment(1)
  size = lines = 0
}

function document_file() {
  if (!lines) return
  comment[1] = ""  # the license
  before[i] = "/// @file\n" doc()
  move_comment(2)
}

function move_comment(first,   j) { for (j = first; j <= lines; ++j) moved[comment_at[j]] = 1 }

function doc(   j, text, out, in_code, brief) {
  ticks = 0
  for (j = 1; j <= lines; ++j) {
    text = comment[j]
    if (!in_code && text ~ /^  / && (j == 1 || comment[j - 1] == "")) {
      in_code = 1
      out = out "/// @code{.cpp}\n"
    } else if (in_code && text !~ /^  / && comment[j + 1] !~ /^  /) {
      in_code = 0
      out = out "/// @endcode\n"
    }
    if (text != "" && !in_code && !brief) { brief = 1; out = out "/// @brief " escape(text) "\n" }
    else out = out "/// " (in_code ? substr(text, 3) : escape(text)) "\n"
  }
  return out (in_code ? "/// @endcode\n" : "")
}

function first_paragraph(   j, text) {
  for (j = 1; j <= lines && comment[j] != ""; ++j) text = text (j > 1 ? " " : "") comment[j]
  return text
}

# A note begins like a sentence and ends like one.
function one_line(text, style) {
  ticks = 0
  if (text ~ /^[a-z]+[ ,;:]/) text = toupper(substr(text, 1, 1)) substr(text, 2)
  if (text !~ /[.?!]$/) text = text "."
  text = escape(text)
  return "/** @brief " (style ? "<span class=\"" style "\">" text "</span>" : text) " */ "
}

# What Doxygen would take for commands, tags and links, outside of `code`.
function escape(text,   part, n, j, out) {
  n = split(text, part, "`")
  for (j = 1; j <= n; ++j) {
    if (j > 1) { ticks = !ticks; out = out "`" }
    if (!ticks) gsub(/[<>@#&\\]/, "\\\\&", part[j])
    out = out part[j]
  }
  return out
}
