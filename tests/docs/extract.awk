# Writes every ```cpp block of the given Markdown files to out/<document>_<n>.cc, and the ```text block that follows a whole
# program to out/<document>_<n>.txt. A block without main becomes the body of a function, whose name no other block has, and is given
# Tutti's headers, and LibTorch's if it uses them. Every ```c and ```python block is a whole program: out/<document>_<n>.c, .py.
FNR == 1 { n = 0; document = FILENAME; sub(".*/", "", document); gsub("[^A-Za-z0-9]", "_", document); program = 0 }
/^```(cpp|c|python)$/ { ++n; language = substr($0, 4); code = includes = ""; inside = "code"; next }
/^```text/ { inside = program ? "text" : "other"; text = ""; next }
/^```/ && inside == "" { inside = "other"; next }
/^```/ {
  base = out "/" document "_" n
  if (inside == "code") {
    program = language != "cpp" || code ~ /int main\(/
    file = base (language == "cpp" ? ".cc" : language == "c" ? ".c" : ".py")
    if (program) printf "%s%s", includes, code > file
    else printf (code ~ /torch::/ ? "#include <torch/torch.h>\n#include <tutti/torch.h>\n" : "") "%s#include <tutti/compat.h>\n#include <tutti/tutti.h>\nusing namespace tutti;\n[[maybe_unused]] static void snippet_%s_%d() {\n%s}\n", includes, document, n, code > file
    close(file)
  } else {
    if (inside == "text") { printf "%s", text > (base ".txt"); close(base ".txt") }
    program = 0
  }
  inside = ""
  next
}
inside == "code" && /^#include/ { includes = includes $0 "\n"; next }
inside == "code" { code = code $0 "\n" }
inside == "text" { text = text $0 "\n" }
inside == "" && NF { program = program && /:$/ }
