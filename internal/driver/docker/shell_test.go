// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// shellScript is the main process of the shell's image: it serves HTTP, and repeats what it
// hears on its standard input, as long as that is open.
const shellScript = `
trap 'exit 0' TERM
/demo-guest &
echo "the shell is up"
while read -r line; do
	echo "heard $line"
done
while :; do sleep 1; done
`

// shellPrograms are copied from this host, with their libraries, so that the tests have a
// real shell and need no registry.
var shellPrograms = []string{"sh", "cat", "sleep", "stty", "env"}

// shellImage imports an image with a shell, once for all tests.
func shellImage(t *testing.T) string {
	t.Helper()
	image, err := importShell()
	assert.Require(t, err == nil, "importing the shell's image: %v", err)
	return image
}

var importShell = sync.OnceValues(func() (string, error) {
	image := framework.ImageName("shell")
	ctx := context.Background()
	g, err := importGuests()
	if err != nil {
		return "", err
	}
	rootfs, err := shellArchive(ctx, g.rootfs)
	if err != nil {
		return "", err
	}
	return image, framework.ImportImage(ctx, g.client, rootfs, image, `ENTRYPOINT ["/bin/sh", "/shell.sh"]`)
})

// shellArchive adds the shell and its script to the guest's file system.
func shellArchive(ctx context.Context, guest []byte) ([]byte, error) {
	files, err := shellFiles(ctx)
	if err != nil {
		return nil, err
	}
	archive, err := archiveOf(files)
	return append(archive, guest...), err
}

// archiveOf returns a tar archive without its end.
func archiveOf(files map[string][]byte) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(files)) { // in an order, so that the image stays the same
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name]))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(files[name]); err != nil {
			return nil, err
		}
	}
	err := w.Flush()
	return archive.Bytes(), err
}

var libraryPath = regexp.MustCompile(`/\S+`)

func shellFiles(ctx context.Context) (map[string][]byte, error) {
	files := map[string][]byte{"shell.sh": []byte(shellScript)}
	for _, name := range shellPrograms {
		path, err := exec.LookPath(name)
		if err != nil {
			return nil, err
		}
		libraries, err := exec.CommandContext(ctx, "ldd", path).Output()
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w", path, err)
		}
		if files["bin/"+name], err = os.ReadFile(path); err != nil {
			return nil, err
		}
		for _, library := range libraryPath.FindAllString(string(libraries), -1) {
			if files[filepath.Clean(library)[1:]], err = os.ReadFile(library); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

func shellSpec(t *testing.T) driver.ServerSpec {
	t.Helper()
	spec := guestSpec(shellImage(t))
	spec.Stdin = true
	return spec
}

// shellGuest describes the shell's abilities to the contract suite.
func shellGuest(c *client.Client) drivertest.Guest {
	shell := func(script string, args ...string) []string {
		return append([]string{"sh", "-c", script, "sh"}, args...)
	}
	return drivertest.Guest{
		Spec: shellSpec,
		Print: func(t *testing.T, _ driver.Driver, s driver.Server, word string) {
			t.Helper()
			printInContainer(t, c, s.ID, word)
		},
		Type: func(word string) string { return word + "\n" },
		Port: 80, DeadPort: 81,
		Talk: func(t *testing.T, conn net.Conn) { t.Helper(); talkHTTP(t, conn) },
		Commands: drivertest.Commands{
			Print:    func(word string) []string { return shell(`echo "$1"`, word) },
			Complain: func(word string) []string { return shell(`echo "$1" >&2`, word) },
			Copy:     []string{"cat"},
			Exit:     func(code int) []string { return shell(`exit "$1"`, fmt.Sprint(code)) },
			Killed:   shell(`kill -KILL $$`),

			NotExecutable: []string{"/etc"},

			Size: shell(`while read -r line; do stty size; done`),
		},
	}
}

// printInContainer writes a line to the standard output of the main process.
func printInContainer(t *testing.T, c *client.Client, id, line string) {
	t.Helper()
	runInContainer(t, c, id, "echo '"+line+"' >/proc/1/fd/1")
}

// runInContainer runs a script beside the main process.
func runInContainer(t *testing.T, c *client.Client, id, script string) {
	t.Helper()
	made, err := c.ExecCreate(t.Context(), id, client.ExecCreateOptions{Cmd: []string{"sh", "-c", script}})
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(c.ExecStart(t.Context(), made.ID, client.ExecStartOptions{Detach: true})))
	assert.Eventually(t, "the end of a command", func(testing.TB) error {
		state, err := c.ExecInspect(t.Context(), made.ID, client.ExecInspectOptions{})
		if err == nil && (state.Running || state.ExitCode != 0) {
			err = fmt.Errorf("it is %+v", state)
		}
		return err
	})
}

// talkHTTP sends the guest a request over a connection.
func talkHTTP(t *testing.T, conn net.Conn) {
	t.Helper()
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil }, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest/", nil)
	assert.NoError(t, err)
	res, err := transport.RoundTrip(req)
	assert.NoError(t, err)
	assert.NoError(t, res.Body.Close())
	assert.True(t, res.StatusCode == http.StatusOK, "the guest answered %s", res.Status)
}
