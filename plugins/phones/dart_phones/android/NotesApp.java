package dart.phone;

import android.content.Intent;
import android.text.InputType;
import android.widget.EditText;

/** The list of notes, and the editor of a new one. */
public final class NotesApp extends Page {
  @Override
  void build() {
    setTitle("Notes");
  }

  @Override
  protected void onResume() {
    super.onResume();
    clear();
    addList(storage().notes());
    addButton("New note", () -> startActivity(new Intent(this, NewNote.class)));
  }

  /** An editor of several lines. */
  public static final class NewNote extends Page {
    private static final int LINES = 4;

    @Override
    void build() {
      setTitle("New note");
      EditText text = addField("Note", InputType.TYPE_CLASS_TEXT | InputType.TYPE_TEXT_FLAG_MULTI_LINE);
      text.setMinLines(LINES);
      addButton("Save", () -> save(text.getText().toString()));
      text.requestFocus();
    }

    private void save(String note) {
      if (!note.isEmpty()) {
        storage().write(note);
        finish();
      }
    }
  }
}
