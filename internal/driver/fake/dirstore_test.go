// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const cluster = "cluster-1"

// testFolder is an engine in a folder, with one server in it.
type testFolder struct {
	dir    string
	d      *fake.Driver
	spec   driver.ServerSpec
	before driver.Server
}

func newFolder(t *testing.T) *testFolder {
	t.Helper()
	f := &testFolder{dir: filepath.Join(t.TempDir(), "engine")}
	f.d = faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	f.spec = specOf("uid-0")
	f.before = ensureServer(t, f.d, f.spec)
	return f
}

func specOf(uid types.UID) driver.ServerSpec {
	s := faketest.NewSpec(nil)
	s.UID, s.Namespace, s.Name, s.Power = uid, "default", "vm-"+string(uid), driver.PowerOn
	return s
}

func ensureServer(t *testing.T, d *fake.Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	s, err := d.Ensure(t.Context(), spec)
	assert.Require(t, err == nil, "Ensure: %v", err)
	return s
}

func (f *testFolder) path(names ...string) string {
	return filepath.Join(append([]string{f.dir}, names...)...)
}

func (f *testFolder) writeFile(t *testing.T, name, content string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(f.path(name), []byte(content), 0o600))
}

func (f *testFolder) listServers(t *testing.T) map[types.UID]driver.Server {
	t.Helper()
	servers, err := f.d.List(t.Context())
	assert.Require(t, err == nil, "List: %v", err)
	byUID := map[types.UID]driver.Server{}
	for _, s := range servers {
		byUID[s.UID] = s
	}
	assert.Require(t, len(byUID) == len(servers), "List shows a UID twice: %+v", servers)
	return byUID
}

// TestBrokenFile checks that a file that cannot be read does not pass for a removed
// server, and that the server is as it was once the file is repaired.
func TestBrokenFile(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"empty":            "",
		"cut off":          `{"clusterID": "cluster-1", "name`,
		"no JSON":          "state: Running\n",
		"an array":         "[]",
		"a typing mistake": `{"clusterID": "cluster-1", "stat": "Stopped"}`,
		"a wrong type":     `{"clusterID": "cluster-1", "load": "much"}`,
		"a wrong state":    `{"clusterID": "cluster-1", "state": "Sleeping"}`,
		"pending":          `{"clusterID": "cluster-1", "state": "Pending"}`,
		"too much load":    `{"clusterID": "cluster-1", "load": 2}`,
		"negative memory":  `{"clusterID": "cluster-1", "memoryBytes": -1}`,
		"another's uid":    `{"clusterID": "cluster-1", "uid": "uid-7"}`,
		"a hostile id":     `{"clusterID": "cluster-1", "id": "../../x"}`,
		"two objects":      `{"clusterID": "cluster-1"} {}`,
		"a bad time":       `{"clusterID": "cluster-1", "startedAt": "yesterday"}`,
		"huge":             `{"name": "` + strings.Repeat("x", 2<<20) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			good := framework.ReadFile(t, f.path("uid-0.json"))
			other := ensureServer(t, f.d, specOf("uid-1"))
			f.writeFile(t, "uid-0.json", content)
			for call, err := range map[string]error{
				"List":        assert.ErrorOf(f.d.List(t.Context())),
				"List of it":  assert.ErrorOf(f.d.List(t.Context(), "uid-0")),
				"Usage of it": assert.ErrorOf(f.d.Usage(t.Context(), "uid-0")),
			} {
				assert.ErrorIs(t, call, err, driver.ErrUnavailable, f.path("uid-0.json"))
			}
			for call, err := range map[string]error{
				"Ensure":  assert.ErrorOf(f.d.Ensure(t.Context(), f.spec)),
				"Delete":  f.d.Delete(t.Context(), f.spec.Target, false),
				"Release": f.d.Delete(t.Context(), f.spec.Target, true),
			} {
				assert.ErrorIs(t, call, err, driver.ErrRetry, f.path("uid-0.json"))
			}
			servers, err := f.d.List(t.Context(), "uid-1")
			assert.True(t, err == nil && len(servers) == 1 && servers[0].Run == other.Run, "List of another server: got %+v, %v", servers, err)
			assert.True(t, content == framework.ReadFile(t, f.path("uid-0.json")), "the broken file was changed")
			f.writeFile(t, "uid-0.json", good)
			s := f.listServers(t)["uid-0"]
			assert.True(t, s.Run == f.before.Run, "repaired it is %+v, want run %s", s, f.before.Run)
		})
	}
}

// TestOtherFilesAreIgnored checks that other files in the folder are ignored.
func TestOtherFilesAreIgnored(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for _, name := range []string{
		"README", "uid-0.json~", ".uid-0.json.swp", "uid-0.json.bak", "uid-0.bak.json", "#uid-0.json#",
		".json", "a b.json", "-x.json", "4913", "tmp/write-123", "tmp/uid-9.json", "locks/uid-9", "locks/uid-9.json",
	} {
		f.writeFile(t, name, "not a record")
	}
	all := f.listServers(t)
	assert.True(t, len(all) == 1 && all["uid-0"].Run == f.before.Run, "List: got %+v, want the one server", all)
	next := faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	s := ensureServer(t, next, f.spec)
	assert.True(t, s.Run == f.before.Run, "Ensure: got %+v, want run %s", s, f.before.Run)
}

// TestAddedByHand checks that a person has to write as little as possible.
func TestAddedByHand(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.writeFile(t, "by-hand.json", `{"clusterID": "cluster-1", "namespace": "default", "name": "x", "state": "Running"}`)
	f.writeFile(t, "off.json", `{"clusterID": "cluster-1"}`)
	all := f.listServers(t)
	on, off := all["by-hand"], all["off"]
	assert.True(t, len(all) == 3, "List: got %+v, want the two and the first", all)
	assert.True(t, on.State == driver.StateRunning && on.Name == "x" && on.ID != "" && on.Run != "" && !on.StartedAt.IsZero(),
		"got %+v, want it running with an ID, a run and a start", on)
	assert.True(t, off.State == driver.StateStopped && off.ID != "" && off.ID != on.ID && off.Exit == nil,
		"got %+v, want it stopped, with an ID of its own, never run", off)
	again := f.listServers(t)["by-hand"]
	assert.True(t, again.Run == on.Run && again.ID == on.ID, "listed again it is %+v, want it the same as %+v", again, on)
	checkAdopted(t, f, on)
}

func checkAdopted(t *testing.T, f *testFolder, was driver.Server) {
	t.Helper()
	spec := specOf(was.UID)
	s := ensureServer(t, f.d, spec)
	assert.True(t, s.ID == was.ID && s.Run == was.Run && s.Applied.CPUMilli == spec.CPUMilli, "adopted it is %+v, want the same run with the size of the spec", s)
}

// TestForeignServers checks that servers of another cluster, or of none, are left alone.
func TestForeignServers(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.writeFile(t, "no-cluster.json", `{}`)
	f.writeFile(t, "theirs.json", `{"clusterID": "cluster-2", "state": "Running"}`)
	all := f.listServers(t)
	assert.True(t, len(all) == 1, "List: got %+v, want our own server alone", all)
	for _, uid := range []types.UID{"no-cluster", "theirs"} {
		before := framework.ReadFile(t, f.path(string(uid)+".json"))
		_, err := f.d.Ensure(t.Context(), specOf(uid))
		assert.ErrorIs(t, "Ensure of "+string(uid), err, driver.ErrRetry)
		assert.Equal(t, fmt.Sprintf("Ensure of %s: got the reason", uid), driver.ReasonOf(err), driver.ReasonNameConflict)
		assert.ErrorIs(t, "Delete of "+string(uid), f.d.Delete(t.Context(), driver.Target{UID: uid}, false), driver.ErrNotFound)
		assert.True(t, framework.ReadFile(t, f.path(string(uid)+".json")) == before, "the file of %s was changed", uid)
	}
}

// TestEditedByHand checks the states that the package comment promises.
func TestEditedByHand(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		edit  func(*fake.Record)
		state driver.State
		exit  *driver.Exit
		same  bool // it is the same run as before
	}{
		"crash":           {func(r *fake.Record) { r.State, r.Exit = "Stopped", &fake.Exit{Code: 1} }, driver.StateStopped, &driver.Exit{Code: 1, Reason: "Error"}, true},
		"stop":            {func(r *fake.Record) { r.State = "Stopped" }, driver.StateStopped, &driver.Exit{Reason: "Completed"}, true},
		"out of memory":   {func(r *fake.Record) { r.State, r.Exit = "Stopped", &fake.Exit{Code: 137, Reason: "OOMKilled"} }, driver.StateStopped, &driver.Exit{Code: 137, Reason: "OOMKilled"}, true},
		"pause":           {func(r *fake.Record) { r.State = "Paused" }, driver.StatePaused, nil, true},
		"being restarted": {func(r *fake.Record) { r.State = "Restarting" }, driver.StateRestarting, nil, true},
		"stop and start":  {func(r *fake.Record) { r.Exit = &fake.Exit{Code: 1} }, driver.StateRunning, nil, false},
		"load":            {func(r *fake.Record) { r.Load = 0.5 }, driver.StateRunning, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			framework.EditJSON(t, f.path("uid-0.json"), c.edit)
			s := f.listServers(t)["uid-0"]
			assert.True(t, s.State == c.state && (s.Run == f.before.Run) == c.same && s.ID == f.before.ID,
				"got %+v, want it %s, of the same run: %v", s, c.state, c.same)
			assert.Require(t, (s.Exit == nil) == (c.exit == nil), "got the exit %+v, want %+v", s.Exit, c.exit)
			assert.True(t, c.exit == nil || (s.Exit.Code == c.exit.Code && s.Exit.Reason == c.exit.Reason && !s.Exit.At.IsZero()),
				"got the exit %+v, want %+v with a time", s.Exit, c.exit)
		})
	}
}

func TestFilesAreReadableAndPrivate(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	secretive := specOf("uid-1")
	secretive.UserData, secretive.NetworkData = driver.NewSecret("hunter2"), driver.NewSecret("hunter2")
	secretive.SSHKeys = []string{"ssh-ed25519 hunter2 me@example.org"}
	ensureServer(t, f.d, secretive)
	text := contentsOf(t, f.dir)
	assert.True(t, !strings.Contains(text, "hunter2") && !strings.Contains(text, "[redacted]"), "the folder holds secrets, or placeholders for them")
	assert.True(t, strings.Contains(text, "\n  \"name\": \"vm-uid-1\",\n") && strings.Contains(text, `"hasUserData": true`),
		"the file is not indented or lacks fields:\n%s", text)
	for path, mode := range map[string]os.FileMode{"": 0o700, "locks": 0o700, "tmp": 0o700, "retained": 0o700, "uid-1.json": 0o600, "engine-id": 0o600, "locks/uid-1": 0o600} {
		info, err := os.Stat(f.path(path))
		assert.True(t, err == nil && info.Mode().Perm() == mode, "%q: got mode %v, %v, want %v", path, info.Mode().Perm(), err, mode)
	}
	left, err := os.ReadDir(f.path("tmp"))
	assert.True(t, err == nil && len(left) == 0, "tmp holds %v (%v), want nothing", left, err)
}

// TestNothingToDo checks that a server that matches its spec is not written.
func TestNothingToDo(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	before, err := os.Stat(f.path("uid-0.json"))
	assert.NoError(t, err)
	ensureServer(t, f.d, f.spec)
	after, err := os.Stat(f.path("uid-0.json"))
	assert.True(t, err == nil && os.SameFile(before, after) && before.ModTime().Equal(after.ModTime()),
		"the file was written although nothing had changed (%v)", err)
}

// TestManyProcesses lets many drivers create, change and delete the same few servers;
// no list may miss a server that exists all the time.
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	var all sync.WaitGroup
	for range 6 {
		d := faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
		all.Go(func() { changeRepeatedly(t, d, f.spec) })
	}
	all.Wait()
	s := f.listServers(t)["uid-0"]
	assert.True(t, s.ID == f.before.ID, "afterwards it is %+v, want the server %s", s, f.before.ID)
	for uid := range f.listServers(t) {
		assert.ErrorIs(t, "Delete", f.d.Delete(t.Context(), driver.Target{UID: uid}, false), nil)
	}
	left := f.listServers(t)
	assert.True(t, len(left) == 0, "there is %+v left", left)
}

func changeRepeatedly(t *testing.T, d *fake.Driver, steady driver.ServerSpec) {
	for i := range 40 {
		steady.MemoryBytes = int64(1e9 + i)
		_, err := d.Ensure(t.Context(), steady)
		changing := specOf(types.UID(fmt.Sprintf("changing-%d", i%3)))
		_, createErr := d.Ensure(t.Context(), changing)
		deleteErr := d.Delete(t.Context(), changing.Target, false)
		for _, err := range []error{err, createErr, deleteErr} {
			assert.True(t, err == nil || errors.Is(err, driver.ErrRetry) || errors.Is(err, driver.ErrNotFound),
				"got error %v, want none or one that may be retried", err)
		}
		servers, err := d.List(t.Context())
		assert.ErrorIs(t, "List", err, nil)
		counts := map[types.UID]int{}
		for _, s := range servers {
			counts[s.UID]++
		}
		assert.True(t, counts[steady.UID] == 1, "List shows the server that is always there %d times", counts[steady.UID])
	}
}

// TestHeldLock checks that a process that was suspended with a lock does not block
// others.
func TestHeldLock(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	lock, err := os.OpenFile(f.path("locks", "uid-0"), os.O_RDWR, 0o600)
	assert.NoError(t, err)
	// A shared lock is enough to exclude callers that want it exclusively.
	assert.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_SH))
	off := f.spec
	off.Power = driver.PowerOff
	assert.ErrorIs(t, "Ensure", assert.ErrorOf(f.d.Ensure(t.Context(), off)), driver.ErrRetry)
	assert.ErrorIs(t, "Delete", f.d.Delete(t.Context(), f.spec.Target, false), driver.ErrRetry)
	s := f.listServers(t)["uid-0"]
	assert.True(t, s.Run == f.before.Run && s.State == driver.StateRunning, "it is %+v, want it unchanged", s)
	ensureServer(t, f.d, specOf("uid-1"))
	assert.NoError(t, lock.Close())
	s = ensureServer(t, f.d, off)
	assert.True(t, s.State == driver.StateStopped, "after the lock was released it is %+v, want it stopped", s)
}

// TestEngineReplaced checks that a folder that was emptied or replaced is another engine,
// or none, and never one without servers.
func TestEngineReplaced(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(t *testing.T, f *testFolder){
		"identity removed": func(t *testing.T, f *testFolder) { removeAll(t, f.path("engine-id")) },
		"identity garbled": func(t *testing.T, f *testFolder) { f.writeFile(t, "engine-id", "?!\n") },
		"folder removed":   func(t *testing.T, f *testFolder) { removeAll(t, f.dir) },
		"folder replaced": func(t *testing.T, f *testFolder) {
			renameFile(t, f.dir, f.dir+".old")
			faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFolder(t)
			events, err := f.d.Watch(t.Context())
			assert.NoError(t, err)
			replace(t, f)
			drivertest.WaitForClose(t, events, "the engine was replaced")
			assert.ErrorIs(t, "List", assert.ErrorOf(f.d.List(t.Context())), driver.ErrUnavailable)
			assert.ErrorIs(t, "List of it", assert.ErrorOf(f.d.List(t.Context(), "uid-0")), driver.ErrUnavailable)
			assert.ErrorIs(t, "Ensure", assert.ErrorOf(f.d.Ensure(t.Context(), f.spec)), driver.ErrUnavailable)
			assert.ErrorIs(t, "Delete", f.d.Delete(t.Context(), f.spec.Target, false), driver.ErrUnavailable)
			_, err = os.Stat(f.path("uid-0.json"))
			assert.True(t, err != nil || name != "folder replaced", "a server was made in the other engine")
		})
	}
}

func removeAll(t *testing.T, path string) {
	t.Helper()
	assert.NoError(t, os.RemoveAll(path))
}

// TestEngineIsPinnedAgain checks that opening a Watch, or reading the id, pins the engine
// that is there now.
func TestEngineIsPinnedAgain(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	first, err := f.d.EngineID(t.Context())
	assert.NoError(t, err)
	renameFile(t, f.dir, f.dir+".old")
	faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	second, err := f.d.EngineID(t.Context())
	assert.True(t, err == nil && second != first, "EngineID: got %s, %v, want another one than %s", second, err, first)
	all := f.listServers(t)
	assert.True(t, len(all) == 0, "the other engine shows %+v", all)
	removeAll(t, f.dir)
	renameFile(t, f.dir+".old", f.dir)
	assert.ErrorIs(t, "Watch", assert.ErrorOf(f.d.Watch(t.Context())), nil)
	s := f.listServers(t)["uid-0"]
	assert.True(t, s.Run == f.before.Run, "back on the first engine it is %+v, want run %s", s, f.before.Run)
}

// TestPartialRelease checks that a server that is marked but not yet moved away counts
// as released.
func TestPartialRelease(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	framework.EditJSON(t, f.path("uid-0.json"), func(r *fake.Record) { r.Retained = true })
	s := f.listServers(t)["uid-0"]
	assert.True(t, s.Retained && s.State == driver.StateRunning, "it is %+v, want it retained and running", s)
	named, err := f.d.List(t.Context(), "uid-0")
	assert.True(t, err == nil && len(named) == 0, "List of it: got %+v, %v, want nothing", named, err)
	assert.ErrorIs(t, "Delete", f.d.Delete(t.Context(), f.spec.Target, false), driver.ErrNotFound)
	s = f.listServers(t)["uid-0"]
	assert.True(t, s.Retained && s.Run == f.before.Run, "after Delete it is %+v, want it retained still", s)
	s = ensureServer(t, f.d, f.spec)
	assert.True(t, s.ID != f.before.ID, "Ensure adopted the released server: %+v", s)
}

// TestRemovedFolders covers a person who removes all released servers together with
// the folder that holds them.
func TestRemovedFolders(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	for _, sub := range []string{"retained", "tmp", "locks"} {
		removeAll(t, f.path(sub))
	}
	n := len(f.listServers(t))
	assert.True(t, n == 1, "List shows %d servers, want 1", n)
	assert.ErrorIs(t, "Watch", assert.ErrorOf(f.d.Watch(t.Context())), nil)
	off := f.spec
	off.Power = driver.PowerOff
	_, _ = f.d.Ensure(t.Context(), off) // May find that the folders are gone.
	s := ensureServer(t, f.d, off)
	assert.True(t, s.State == driver.StateStopped, "it is %+v, want it stopped", s)
}

// TestPartialFilesAreRemoved checks that the next process removes the partial files of
// a killed one.
func TestPartialFilesAreRemoved(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	f.writeFile(t, "tmp/write-half", `{"clusterID":`)
	next := faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	ensureServer(t, next, specOf("uid-1"))
	left, err := os.ReadDir(f.path("tmp"))
	assert.True(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
}

// TestEmptyRecordsAreRemoved checks that records which a power cut has emptied do not make the
// engine unavailable, and that nothing else is removed.
func TestEmptyRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	ensureServer(t, f.d, specOf("uid-1"))
	f.writeFile(t, "uid-0.json", "")
	f.writeFile(t, "notes", "")
	next := faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	servers, err := next.List(t.Context())
	assert.True(t, err == nil && len(servers) == 1 && servers[0].UID == "uid-1", "it has %+v, %v", servers, err)
	assert.ReportError(t, assert.ErrorOf(os.Stat(f.path("notes"))))
}

// TestEmptyRecordsOfOthersStay checks that an empty record stays while another process has its
// lock, and that empty files other than records stay.
func TestEmptyRecordsOfOthersStay(t *testing.T) {
	t.Parallel()
	f := newFolder(t)
	dir, err := statedir.Open("the folder", f.dir)
	assert.NoError(t, err)
	lock, err := dir.Lock("uid-0")
	assert.NoError(t, err)
	f.writeFile(t, "uid-0.json", "")
	f.writeFile(t, ".hidden.json", "")
	faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	for _, name := range []string{"uid-0.json", ".hidden.json"} {
		assert.ReportError(t, assert.ErrorOf(os.Stat(f.path(name))))
	}
	lock.Release()
	faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: f.dir})
	_, err = os.Stat(f.path("uid-0.json"))
	assert.True(t, err != nil, "an empty record stays")
}

func TestUncreatableFolder(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	assert.ErrorSays(t, "New", assert.ErrorOf(fake.New(fake.Options{ClusterID: cluster, Dir: filepath.Join(file, "x")})), file)
}

// FuzzServerFile checks that whatever a file contains, its server is either listed or the
// list fails and names the file.
func FuzzServerFile(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `{"clusterID":"cluster-1"}`, `{"clusterID":"cluster-1","state":"Running","exit":{"code":1}}`,
		`{"clusterID":"cluster-1","state":"Stopping"}`, `{"clusterID":"cluster-1","retained":true}`, `null`, `[1]`,
		`{"clusterID":"cluster-1","uid":"x","stopsAt":"2020-01-01T00:00:00Z"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		dir := t.TempDir()
		d := faketest.OpenDriver(t, fake.Options{ClusterID: cluster, Dir: dir})
		path := filepath.Join(dir, "x.json")
		assert.NoError(t, os.WriteFile(path, content, 0o600))
		servers, err := d.List(t.Context())
		var r fake.Record
		switch {
		case err != nil:
			assert.ErrorIs(t, "List", err, driver.ErrUnavailable, path)
		case json.Unmarshal(content, &r) != nil:
			t.Errorf("List accepted %q as a server", content)
		case (len(servers) == 1) != (r.ClusterID == cluster):
			t.Errorf("List shows %+v for %q", servers, content)
		}
		_, ensureErr := d.Ensure(t.Context(), specOf("x"))
		assert.True(t, err == nil || ensureErr != nil, "Ensure accepted what List refused: %q", content)
	})
}
