// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/test/assert"
)

func openDir(t *testing.T, path string) *Dir {
	t.Helper()
	d, err := Open(path)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestOpenMakesAPrivateFolder(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"missing":         func(string) error { return nil },
		"empty":           func(path string) error { return os.MkdirAll(path, 0o700) },
		"open to all":     func(path string) error { return errors.Join(os.MkdirAll(path, 0o700), os.Chmod(path, 0o755)) },
		"used before":     func(path string) error { return closeNew(Open(path)) },
		"used and opened": func(path string) error { return errors.Join(closeNew(Open(path)), os.Chmod(path, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "deep", "dir")
			assert.NoError(t, prepare(path))
			d := openDir(t, path)
			for _, dir := range []string{path, d.Etcd(), d.Run(), d.Logs(), d.Drivers()} {
				info, err := os.Stat(dir)
				assert.NoError(t, err)
				assert.True(t, info.Mode().Perm() == 0o700, "%s has mode %v", dir, info.Mode())
			}
		})
	}
}

func closeNew(d *Dir, err error) error {
	if err != nil {
		return err
	}
	return d.Close()
}

func TestLockIsExclusive(t *testing.T) {
	path := t.TempDir()
	d := openDir(t, path)
	for name, try := range map[string]func(string) (*Dir, error){"up": Open, "purge": OpenExisting} {
		_, err := try(path)
		want := fmt.Sprintf("data dir %s is in use by drover (pid %d)", path, os.Getpid())
		assert.True(t, err != nil && err.Error() == want, "%s got %v, want %s", name, err, want)
		_, ok := errors.AsType[*InUseError](err)
		assert.True(t, ok, "%s: %v is not an InUseError", name, err)
	}
	assert.NoError(t, d.Close())
	openDir(t, path)
}

func TestRefusedOpenChangesNothing(t *testing.T) {
	d := openDir(t, t.TempDir())
	assert.NoError(t, d.SetReady())
	_, err := Open(string(d.Layout))
	assert.Require(t, err != nil, "opened twice")
	assert.ErrorIs(t, "the holder's files", assert.ErrorOf(os.Stat(d.Ready())), nil)
}

func TestOpenRefusesForeignFolder(t *testing.T) {
	path := t.TempDir()
	assert.NoError(t, os.WriteFile(filepath.Join(path, "thesis.txt"), nil, 0o600))
	assert.NoError(t, os.Chmod(path, 0o755))
	_, err := Open(path)
	assert.ErrorSays(t, "a foreign folder", err, path+" is not empty and not a Drover data dir")
	info, err := os.Stat(path)
	assert.NoError(t, err)
	assert.True(t, info.Mode().Perm() == 0o755, "mode became %v", info.Mode())
}

func TestOpenExistingRequiresADataDir(t *testing.T) {
	for name, path := range map[string]string{"missing": filepath.Join(t.TempDir(), "missing"), "empty": t.TempDir()} {
		_, err := OpenExisting(path)
		assert.True(t, err != nil && strings.HasPrefix(err.Error(), path+" is not a Drover data dir: name "), "%s: got %v", name, err)
	}
}

func TestErrorMessages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.ErrorSays(t, "below a file", assert.ErrorOf(Open(filepath.Join(file, "dir"))), "is not a folder")
	_, err := Open("/proc/drover")
	assert.True(t, err != nil && !strings.Contains(err.Error(), "\n"), "where nothing can be made: %v", err)
	for cause, want := range map[error]string{
		syscall.ENOSPC: "the disk of data dir /d is full",
		syscall.EDQUOT: "the disk of data dir /d is full",
		syscall.EROFS:  "data dir /d is on a read-only file system",
		syscall.EACCES: "no permission for data dir /d (choose another with --data-dir)",
	} {
		err := (&Dir{Layout: "/d"}).ExplainError(fmt.Errorf("write: %w", cause))
		assert.True(t, strings.HasPrefix(err.Error(), want) && errors.Is(err, cause), "got %v, want %s", err, want)
	}
	assert.ErrorIs(t, "nil became", (&Dir{Layout: "/d"}).ExplainError(nil), nil)
}

func TestPortAndClusterIDAreStored(t *testing.T) {
	d := openDir(t, t.TempDir())
	want := func(port int, id string) {
		t.Helper()
		gotPort, portErr := d.Port()
		gotID, err := d.ClusterID()
		err = errors.Join(portErr, err)
		assert.True(t, err == nil && gotPort == port && gotID == id, "port %d and cluster id %q, %v; want %d and %q", gotPort, gotID, err, port, id)
	}
	want(0, "")
	assert.NoError(t, errors.Join(d.SetPort(6443), d.SetClusterID("uid"), d.Close()))
	d = openDir(t, string(d.Layout))
	want(6443, "uid")
}

func TestDamagedPortFile(t *testing.T) {
	d := openDir(t, t.TempDir())
	for _, content := range []string{"many", "0", "70000", "-1"} {
		assert.NoError(t, os.WriteFile(filepath.Join(string(d.Layout), portFile), []byte(content), 0o600))
		_, err := d.Port()
		assert.True(t, err != nil && strings.Contains(err.Error(), strconv.Quote(content)) && strings.Contains(err.Error(), "--port"), "%q: got %v", content, err)
	}
}

func TestOpenRemovesStaleFiles(t *testing.T) {
	d := openDir(t, t.TempDir())
	temp := filepath.Join(string(d.Layout), ".tmp-kubeconfig-1")
	assert.NoError(t, errors.Join(d.SetReady(), os.WriteFile(temp, nil, 0o600), d.Close()))
	openDir(t, string(d.Layout))
	for _, path := range []string{d.Ready(), temp} {
		assert.ErrorIs(t, path, assert.ErrorOf(os.Stat(path)), os.ErrNotExist)
	}
}

// TestSocket checks that a socket works however long the data dir's path is.
func TestSocket(t *testing.T) {
	deep := filepath.Join(t.TempDir(), strings.Repeat("long-name-", 20), strings.Repeat("deeper-yet", 10))
	for name, path := range map[string]string{"short": t.TempDir(), "long": deep} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t, path)
			socket, err := d.Socket("etcd.sock")
			assert.NoError(t, err)
			assert.True(t, len(socket) <= maxSocketPath, "%s has %d bytes", socket, len(socket))
			assertConnects(t, socket)
			again, err := d.Socket("etcd.sock")
			assert.True(t, err == nil && again == socket, "then it is %s, %v", again, err)
		})
	}
}

func TestSocketPathLimit(t *testing.T) {
	for _, extra := range []int{0, 1} {
		base := t.TempDir()
		fill := maxSocketPath - len(filepath.Join(base, "x", runDir, "etcd.sock")) + 1 + extra
		d := openDir(t, filepath.Join(base, strings.Repeat("x", fill)))
		socket, err := d.Socket("etcd.sock")
		assert.NoError(t, err)
		assert.True(t, strings.HasPrefix(socket, base) == (extra == 0), "%d bytes over: %s", extra, socket)
		assertConnects(t, socket)
	}
}

func assertConnects(t *testing.T, socket string) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	assert.NoError(t, err)
	defer func() { _ = listener.Close() }()
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "unix", socket)
	assert.NoError(t, err)
	assert.NoError(t, conn.Close())
}

func TestRemoveKeepsForeignFiles(t *testing.T) {
	for name, foreign := range map[string][]string{"all": nil, "but a person's file": {"notes"}} {
		t.Run(name, func(t *testing.T) {
			d := openDir(t, filepath.Join(t.TempDir(), "dir"))
			assert.NoError(t, errors.Join(d.SetPort(1), d.SetClusterID("uid"), d.SetReady(), os.MkdirAll(d.PKI(), 0o700)))
			for _, path := range append([]string{"kubeconfig", "engines.json", "logs/drover.log", "pki/ca.pem"}, foreign...) {
				assert.NoError(t, os.WriteFile(filepath.Join(string(d.Layout), path), nil, 0o600))
			}
			left, err := d.Remove()
			assert.True(t, err == nil && slices.Equal(left, foreign), "left %v, %v", left, err)
			_, err = os.Stat(string(d.Layout))
			assert.True(t, errors.Is(err, os.ErrNotExist) == (foreign == nil), "the folder: %v", err)
		})
	}
}

func TestDefault(t *testing.T) {
	for name, tc := range map[string]struct {
		env  map[string]string
		uid  int
		want string
	}{
		"root":               {map[string]string{"HOME": "/root", "XDG_DATA_HOME": "/x"}, 0, "/var/lib/drover"},
		"user":               {map[string]string{"HOME": "/home/u"}, 1000, "/home/u/.local/share/drover"},
		"user with XDG":      {map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": "/x"}, 1000, "/x/drover"},
		"XDG must be rooted": {map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": "x"}, 1000, "/home/u/.local/share/drover"},
		"said otherwise":     {map[string]string{"HOME": "/root", "DROVER_DATA_DIR": "/d"}, 0, "/d"},
	} {
		t.Run(name, func(t *testing.T) {
			getenv := func(key string) string { return tc.env[key] }
			got := Default(getenv, tc.uid)
			assert.True(t, got == tc.want, "got %s, want %s", got, tc.want)
		})
	}
}

// TestVersion checks that a data dir which this version cannot read is refused and left as it is, and that one of the
// version before data-version is read.
func TestVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	d, err := Open(path)
	assert.NoError(t, err)
	assert.NoError(t, d.SetEtcdStarted())
	drivers := d.Drivers()
	assert.NoError(t, d.Close())
	const later = `{"readableFrom": 99, "writtenBy": "9.9.9"}`
	for name, c := range map[string]struct{ file, content, says string }{
		"none":             {filepath.Join(path, format.DataVersionFile), "", "purge it with that version"},
		"a later one":      {filepath.Join(path, format.DataVersionFile), later, "install Drover 9.9.9 or a later version"},
		"of a driver":      {filepath.Join(drivers, "qemu", format.DataVersionFile), later, "install Drover 9.9.9 or a later version"},
		"an unknown need":  {filepath.Join(path, format.DataVersionFile), `{"mustUnderstand": {"shards": "9.9.9"}}`, `mustUnderstand has "shards"`},
		"a damaged record": {filepath.Join(path, format.DataVersionFile), `{`, format.DataVersionFile},
	} {
		before, _ := os.ReadFile(c.file)
		assert.NoError(t, os.MkdirAll(filepath.Dir(c.file), 0o700))
		assert.NoError(t, os.WriteFile(c.file, []byte(c.content), 0o600))
		if c.content == "" {
			assert.NoError(t, os.Remove(c.file))
		}
		had := snapshot(t, path)
		assert.ErrorSays(t, name, assert.ErrorOf(Open(path)), c.says)
		assert.ErrorSays(t, name, assert.ErrorOf(OpenExisting(path)), c.says)
		assert.Equal(t, name+": the files", snapshot(t, path), had)
		if err := os.WriteFile(c.file, before, 0o600); before == nil {
			assert.NoError(t, errors.Join(err, os.RemoveAll(filepath.Dir(c.file))))
		}
	}
	assert.NoError(t, os.Remove(filepath.Join(path, format.DataVersionFile)))
	assert.NoError(t, os.WriteFile(filepath.Join(path, oldFormatFile), []byte(oldFormat), 0o600))
	d, err = Open(path)
	assert.NoError(t, err)
	assert.NoError(t, d.Close())
	has, err := format.HasVersion(path)
	assert.True(t, err == nil && has, "it has a version: %v, %v", has, err)
}

// snapshot returns the names, times and sizes of all files below a folder.
func snapshot(t *testing.T, path string) string {
	t.Helper()
	var all strings.Builder
	assert.NoError(t, filepath.Walk(path, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&all, path, info.ModTime(), info.Size())
		}
		return err
	}))
	return all.String()
}

// TestUninitializedEtcdIsRemoved checks that the data of an etcd that never came up is
// removed, and that data which may include acknowledged writes stays.
func TestUninitializedEtcdIsRemoved(t *testing.T) {
	for name, tc := range map[string]struct {
		mark func(*Dir) error
		kept bool
	}{
		"never came up":   {func(*Dir) error { return nil }, false},
		"came up":         {(*Dir).SetEtcdStarted, true},
		"has a cluster":   {func(d *Dir) error { return d.SetClusterID("some") }, true},
		"both, and again": {func(d *Dir) error { return errors.Join(d.SetEtcdStarted(), d.SetClusterID("some")) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "data")
			d := openDir(t, path)
			file := filepath.Join(d.Etcd(), "member")
			assert.NoError(t, errors.Join(os.WriteFile(file, nil, 0o600), tc.mark(d), d.Close()))
			openDir(t, path)
			_, err := os.Stat(file)
			assert.True(t, (err == nil) == tc.kept, "%v, want it kept: %v", err, tc.kept)
		})
	}
}

// TestHolder checks that the holder is found without the lock being tried, and that neither a
// process ID that was left in the file nor another file's lock passes for one.
func TestHolder(t *testing.T) {
	path := t.TempDir()
	pid, err := Layout(path).Holder()
	assert.True(t, pid == 0 && err == nil, "of an empty folder: %d, %v", pid, err)
	d := openDir(t, path)
	pid, err = d.Holder()
	assert.True(t, pid == os.Getpid() && err == nil, "while it is held: %d, %v", pid, err)
	assert.NoError(t, d.Close())
	pid, err = d.Holder()
	assert.True(t, pid == 0 && err == nil, "afterwards: %d, %v", pid, err)
	assert.NoError(t, os.WriteFile(filepath.Join(path, lockFile), []byte("some\n"), 0o600))
	assert.ErrorSays(t, "of a damaged file", assert.ErrorOf(d.Holder()), `holds "some"`)
}

func TestFindLockOwner(t *testing.T) {
	file := &syscall.Stat_t{Dev: 0xfe01, Ino: 77}
	for name, c := range map[string]struct {
		line string
		want int
	}{
		"it":                     {"1: FLOCK  ADVISORY  WRITE 42 fe:01:77 0 EOF", 42},
		"on another device":      {"1: FLOCK  ADVISORY  WRITE 42 00:2f:77 0 EOF", 42},
		"in another namespace":   {"1: FLOCK  ADVISORY  WRITE 999 fe:01:77 0 EOF", 999},
		"of another process":     {"1: FLOCK  ADVISORY  WRITE 999 00:2f:77 0 EOF", 0},
		"of another file":        {"1: FLOCK  ADVISORY  WRITE 42 fe:01:177 0 EOF", 0},
		"of another kind":        {"1: POSIX  ADVISORY  WRITE 42 fe:01:77 0 EOF", 0},
		"that waits":             {"1: -> FLOCK  ADVISORY  WRITE 42 fe:01:77 0 EOF", 0},
		"of a process not shown": {"1: FLOCK  ADVISORY  WRITE -1 fe:01:77 0 EOF", 0},
		"none":                   {"", 0},
	} {
		assert.Equal(t, name, findLockOwner(c.line+"\n", 42, file), c.want)
	}
}
