// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// terminal is a pseudo-terminal.
type terminal struct {
	person, program *os.File
	text            buffer
	ended           chan struct{}
	exit            chan int
}

// newTerminal opens a terminal of a size, and collects all output to it.
func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	assert.NoError(t, err)
	fd := int(person.Fd())
	number, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0),
		unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width}))
	assert.NoError(t, err)
	program, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	assert.NoError(t, err)
	tty := &terminal{person: person, program: program, ended: make(chan struct{}), exit: make(chan int, 1)}
	go func() {
		defer close(tty.ended)
		_, _ = io.Copy(&tty.text, person)
	}()
	return tty
}

// close ends the terminal and returns all that was written.
func (tty *terminal) close() string {
	_ = tty.program.Close()
	<-tty.ended // reading fails once the program's end is closed
	_ = tty.person.Close()
	return tty.text.String()
}

// startCommand starts a verb on the terminal.
func (tty *terminal) startCommand(ctx context.Context, u *user, args ...string) {
	go func() {
		tty.exit <- app.Main(ctx, u.args(args), genericiooptions.IOStreams{In: tty.program, Out: tty.program, ErrOut: tty.program})
	}()
}

// waitForExit waits for the end of the verb, and returns its exit code.
func (tty *terminal) waitForExit(t testing.TB) int {
	t.Helper()
	return waitForExit(t, tty.exit)
}

func (tty *terminal) typeText(t testing.TB, text string) {
	t.Helper()
	assert.NoError(t, assert.ErrorOf(io.WriteString(tty.person, text)))
}

// TestDeleteAsks answers delete's question on a terminal.
func TestDeleteAsks(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	for _, one := range []struct {
		answer string
		code   int
		gone   bool
	}{{"n\n", 1, false}, {"\n", 1, false}, {"\x04", 1, false}, {"y\n", 0, true}} {
		tty := newTerminal(t, 80, 24)
		tty.startCommand(t.Context(), u, "delete", "web")
		tty.text.waitFor(t, "Delete 1 VM? [y/N] ")
		tty.typeText(t, one.answer)
		code := tty.waitForExit(t)
		text := tty.close()
		assert.True(t, code == one.code && (u.findVM("web") == nil) == one.gone, "the answer %q ended with %d: %q", one.answer, code, text)
		if !one.gone {
			wantTexts(t, text, "error: nothing was deleted")
		}
	}
}

// TestQuestionEndsByCtrlC ends the program while it waits for an answer.
func TestQuestionEndsByCtrlC(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tty := newTerminal(t, 80, 24)
	tty.startCommand(ctx, u, "delete", "web")
	tty.text.waitFor(t, "[y/N] ")
	cancel()
	code := tty.waitForExit(t)
	assert.True(t, code == 130 && u.findVM("web") != nil, "it ended with %d", code)
	tty.typeText(t, "\n") // ends the read
	tty.close()
}

// TestColors looks for escape sequences, which only a terminal may get.
func TestColors(t *testing.T) {
	u := newUser(t)
	u.createVM("web")
	for noColor, colored := range map[string]bool{"": true, "1": false} {
		t.Setenv("NO_COLOR", noColor)
		tty := newTerminal(t, 80, 24)
		tty.startCommand(t.Context(), u, "list")
		assert.Equal(t, "list ended with", tty.waitForExit(t), 0)
		if text := tty.close(); strings.Contains(text, "\x1b[32mActive") != colored || strings.Contains(text, "\x1b") != colored {
			t.Errorf("with NO_COLOR=%q it printed %q", noColor, text)
		}
	}
}

// TestCreateOnATerminal checks that the redrawn progress line is erased at the end, and that no line
// is longer than a narrow terminal.
func TestCreateOnATerminal(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.setFaults()
	tty := newTerminal(t, 40, 24)
	tty.startCommand(t.Context(), u, "create", slow, "--driver=fake", "--wait")
	tty.text.waitFor(t, "Creating")
	assert.Equal(t, "it ended with", tty.waitForExit(t), 0)
	text := tty.close()
	wantTexts(t, text, "✓ server created", slow+" is ready after ")
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\r\x1b[K", "\n"), "\n") {
		n := len([]rune(strings.TrimSuffix(line, "\r")))
		assert.True(t, n <= 40 || !strings.ContainsAny(line, "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"), "a line of %d characters would be broken: %q", n, line)
	}
}

// TestCompletion requests completions as kubectl does.
func TestCompletion(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	u.createVM("db")
	complete := func(args ...string) string {
		var out buffer
		code := app.Main(t.Context(), append([]string{"/usr/bin/kubectl_complete-vm"}, args...), genericiooptions.IOStreams{In: u.stdin, Out: &out, ErrOut: io.Discard})
		assert.Equal(t, fmt.Sprintf("the completion of %q ended with", args), code, 0)
		return out.String()
	}
	n := "--namespace=" + u.namespace
	for want, args := range map[string][]string{
		"db\tActive\nweb\tActive\n:4\n": {"stop", n, ""},
		"db\tActive\n:4\n":              {"stop", n, "web", ""},
		":4\n":                          {"explain", n, "web", ""},
		"docker\nqemu\npod\nfake\n:4\n": {"create", n, "--driver", ""},
		"bash\nzsh\nfish\n:4\n":         {"completion", ""},
	} {
		assert.Eventually(t, "a completion by an API server that answers in time", func(testing.TB) error {
			got := complete(args...)
			return assert.ErrorUnless(got == want, "%q is completed by %q, want %q", args, got, want)
		})
	}
	assert.Contains(t, "the namespaces", complete("list", "--namespace", ""), u.namespace+"\n")
	got := complete("sto")
	assert.True(t, strings.HasPrefix(got, "stop\t"), "sto is completed by %q", got)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		wantTexts(t, u.mustRun("completion", shell), "kubectl-vm")
	}
}

// pluginPath returns the paths of kubectl-vm and drover, which make build puts into one folder.
func pluginPath(t *testing.T) (path, drover string) {
	t.Helper()
	drover, err := framework.DroverBinary()
	path = filepath.Join(filepath.Dir(drover), "kubectl-vm")
	if err == nil {
		_, err = os.Stat(path)
	}
	assert.Require(t, err == nil, "%v: run make build", err)
	return path, drover
}

// TestPlugin runs kubectl-vm as a plugin of kubectl.
func TestPlugin(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.createVM("web")
	path, drover := pluginPath(t)
	run := func(program string, args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(path)+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(drover, "kubectl", "vm", "list", "--namespace="+u.namespace)
	assert.True(t, err == nil && strings.Contains(out, "web    Active"), "kubectl vm list: %v: %s", err, out)
	out, err = run(drover, "kubectl", "vm", "explain", "none", "--namespace="+u.namespace)
	exit := (*exec.ExitError)(nil)
	assert.True(t, errors.As(err, &exit) && exit.ExitCode() == 3, "kubectl vm explain: %v: %s", err, out)
	out, err = run(path, "--version")
	assert.True(t, err == nil && strings.HasPrefix(out, "kubectl-vm "), "version: %v: %s", err, out)
}
