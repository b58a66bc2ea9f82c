package dart.phone;

import android.view.ContextMenu;
import android.view.MenuItem;
import android.view.View;
import android.widget.AdapterView;
import android.widget.ListView;

/** The list of messages; a long press on one opens its menu. */
public final class MessagesApp extends Page {
  private String[] senders = {};

  @Override
  void build() {
    setTitle("Messages");
    String[][] messages = storage().rows("messages");
    senders = new String[messages.length];
    String[] rows = new String[messages.length];
    for (int row = 0; row < rows.length; row++) {
      senders[row] = messages[row][0];
      rows[row] = messages[row][0] + ": " + messages[row][1];
    }
    ListView list = addList(rows);
    registerForContextMenu(list);
  }

  @Override
  public void onCreateContextMenu(ContextMenu menu, View view, ContextMenu.ContextMenuInfo info) {
    menu.add("Keep");
    menu.add("Delete");
  }

  @Override
  public boolean onContextItemSelected(MenuItem item) {
    int row = ((AdapterView.AdapterContextMenuInfo) item.getMenuInfo()).position;
    if (item.getTitle().equals("Delete")) {
      storage().delete("messages", senders[row]);
      clear();
      build();
    }
    return true;
  }
}
