"""Placeholders of programs that tasks run: those that prepare a folder, and those that judge it."""

from collections.abc import Callable
from pathlib import Path

from dart_desktops.osworld.placeholders.profiles import ADDRESS
from dart_desktops.osworld.placeholders.request import FileRequest

SCRIPTS: dict[str, str] = {
    "37887e8c/setup.sh": """mkdir -p /tmp/test_files/old_files /tmp/test_files/new_files
for name in old1 old2 new1 new2; do echo $name >/tmp/test_files/$name.txt; done
touch -d '40 days ago' /tmp/test_files/old1.txt /tmp/test_files/old2.txt
""",
    "37887e8c/eval_20250703.sh": """cd /tmp/test_files
if ls old_files/old1*.* old_files/old2*.* new_files/new1.txt new_files/new2.txt && [ -z "$(ls *.txt)" ]; then
    echo 'SUCCESS: The task was completed correctly.'
fi
""",
    "4127319a/setup.sh": """mkdir -p /home/user/project/a/b
seq 20 >/home/user/project/one.php
seq 30 >/home/user/project/a/two.php
seq 4 >/home/user/project/a/b/three.php
seq 9 >/home/user/project/a/notes.txt
""",
    "4d117223/setup.sh": """mkdir -p testDir/inner
touch testDir/one testDir/inner/two
chmod 600 testDir/one
chmod 755 testDir/inner/two
""",
    "4d117223/eval.sh": """cd /home/user
if [ -z "$(find testDir -type f ! -perm 644)" ] && [ -e testDir/inner/two ]; then
    echo 'All files have the correct permissions.'
fi
""",
    "5c1075ca/setup.sh": """mkdir -p test_environment/a/b
touch test_environment/one_failed.ipynb test_environment/a/b/two_failed.ipynb test_environment/a/fine.ipynb
""",
    "5c1075ca/eval.sh": """cd /home/user/test_environment/fails
if [ -e one_failed.ipynb ] && [ -e a/b/two_failed.ipynb ] && [ ! -e a/fine.ipynb ]; then
    echo 'Evaluation successful.'
fi
""",
    "5ced85fc/eval.sh": """if printf '1<br/>\\n2<br/>\\n3<br/>\\n' | diff -q - /home/user/output.txt >/dev/null; then
    echo 'Success: The task has been completed correctly.'
fi
""",
    "6f56bf42/setup.sh": """mkdir -p dir1 dir2 dir3
echo content >file1
""",
    "6f56bf42/eval.sh": """for folder in dir1 dir2 dir3; do
    if [ -e /home/user/$folder/file1 ]; then echo "Success: file1 exists in $folder."; fi
done
""",
    "b337d106/eval.sh": """if grep -Eq '^[[:space:]]*set nu' ~/.vimrc; then echo 'The File Has Set Number!'; fi
""",
    "dfac9ee8/firefox_decrypt.py": f"""import glob
print("url,user,password")
for path in glob.glob("/home/user/.thunderbird/*/prefs.js"):
    if '"{ADDRESS}"' in open(path).read():
        print("imap://outlook.office365.com,{ADDRESS},password")
""",
}
"""By the beginning of the task's id and the file's name: what the task's evaluator expects of its own files."""


def own_script(request: FileRequest) -> str | None:
    """Return the program that the file's task needs, None if any will do."""
    path = Path(request.path)
    return SCRIPTS.get(f"{path.parent.name.partition('-')[0]}/{path.name}")


def write_script(path: Path, request: FileRequest) -> None:
    """Write a program that prints its lines, or the one that the task needs."""
    path.write_text(own_script(request) or "".join(f"echo '{line}'\n" for line in request.lines), encoding="utf-8")


def write_module(path: Path, request: FileRequest) -> None:
    """Write a Python program that prints its lines, or the JSON object that the task reads."""
    printed = ("{}",) if "json" in request.aspects else request.lines
    path.write_text(own_script(request) or "".join(f"print({line!r})\n" for line in printed), encoding="utf-8")


WRITERS: dict[str, Callable[[Path, FileRequest], None]] = {".sh": write_script, ".py": write_module}
