package dart.phone;

import java.io.ByteArrayOutputStream;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.json.JSONObject;

/** Commands of an episode: a JSON object a line on standard input, each answered by one on standard output. */
final class Commands {
  private final InputStream input;
  private final OutputStream output = new FileOutputStream(FileDescriptor.out);
  private final Device device = new Device();

  Commands(InputStream input) {
    this.input = input;
  }

  /** Serves until the command {@code end}, which has no answer. Without further input the process ends. */
  void serve() throws Exception {
    while (true) {
      String line = readLine();
      if (line == null) {
        System.exit(0);
      }
      JSONObject command = new JSONObject(line);
      if (command.getString("do").equals("end")) {
        device.end();
        return;
      }
      write(answer(command));
    }
  }

  private JSONObject answer(JSONObject command) throws Exception {
    switch (command.getString("do")) {
      case "hello":
        return new JSONObject();
      case "start":
        device.start(command.getString("qualifiers"), command.getString("app"), command.getJSONObject("state"));
        return device.screen(true);
      case "step":
        device.perform(command.getJSONArray("events"), command.getInt("held"));
        return device.screen(command.getBoolean("image"));
      case "state":
        return new JSONObject().put("state", device.state());
      case "elements":
        return new JSONObject().put("elements", Elements.ofTopWindow());
      default:
        throw new IllegalArgumentException("unknown command: " + command);
    }
  }

  /** Reads bytes one by one: a reader would take those of the next episode. */
  private String readLine() throws IOException {
    ByteArrayOutputStream line = new ByteArrayOutputStream();
    for (int next = input.read(); next != '\n'; next = input.read()) {
      if (next < 0) {
        return null;
      }
      line.write(next);
    }
    return new String(line.toByteArray(), StandardCharsets.UTF_8);
  }

  private void write(JSONObject answer) throws IOException {
    output.write((answer + "\n").getBytes(StandardCharsets.UTF_8));
    output.flush();
  }
}
