// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func openDir(t *testing.T, path string) *statedir.Dir {
	t.Helper()
	d, err := statedir.Open("the test's folder", path, "servers")
	assert.NoError(t, err)
	return d
}

// TestIdentity checks that the identity is stable, that concurrent Opens agree on it, and
// that a folder with another one is another engine.
func TestIdentity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "engine")
	var all sync.WaitGroup
	var ids sync.Map
	for range 8 {
		all.Go(func() {
			d, err := statedir.Open("the test's folder", path)
			if err != nil {
				t.Error(err)
				return
			}
			id, err := d.ID()
			assert.ReportError(t, err)
			ids.Store(id, true)
		})
	}
	all.Wait()
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	assert.True(t, n == 1, "the folder has %d identities", n)
	d := openDir(t, path)
	assert.NoError(t, d.Reach())
	assert.NoError(t, os.WriteFile(d.Path(statedir.IDFile), []byte("another\n"), 0o600))
	assert.ErrorIs(t, "another identity", d.Reach(), driver.ErrUnavailable)
	assert.NoError(t, os.Rename(path, path+".away"))
	assert.ErrorIs(t, "no folder", d.Reach(), driver.ErrUnavailable)
	assert.ErrorIs(t, "lock without a folder", assert.ErrorOf(d.Lock("uid")), driver.ErrUnavailable)
}

func TestLock(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	held, err := d.Lock("uid")
	assert.NoError(t, err)
	assert.ErrorIs(t, "a lock that is held", assert.ErrorOf(d.Lock("uid")), driver.ErrRetry)
	other, err := d.Lock("other")
	assert.NoError(t, err)
	other.Release()
	held.Remove()
	again, err := d.Lock("uid")
	assert.NoError(t, err)
	again.Release()
}

// TestLockRemoved checks that many callers that remove the lock as they leave never hold
// it at the same time.
func TestLockRemoved(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	var all sync.WaitGroup
	var inside sync.Mutex
	taken := 0
	for range 8 {
		all.Go(func() {
			for range 500 {
				l, err := d.Lock("uid")
				if err != nil {
					continue
				}
				if !inside.TryLock() {
					t.Error("two callers have the lock")
					l.Release()
					return
				}
				taken++
				inside.Unlock()
				l.Remove()
			}
		})
	}
	all.Wait()
	assert.True(t, taken != 0, "no caller got the lock")
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	for _, c := range []struct {
		cluster string
		epoch   uint64
		fenced  bool
	}{
		{"a", 0, false},
		{"a", 7, false},
		{"a", 6, true},
		{"a", 7, false},
		{"a", 0, false},
		{"../b", 1, false},
		{"a", 1 << 40, false},
		{"a", 7, true},
	} {
		err := d.Admit(c.cluster, c.epoch)
		assert.True(t, errors.Is(err, driver.ErrFenced) == c.fenced && (err == nil || c.fenced),
			"cluster %s, epoch %d: got %v, want fenced %v", c.cluster, c.epoch, err, c.fenced)
	}
	for n := range uint64(300) {
		assert.NoError(t, d.Admit("many", n+1))
	}
	entries, err := os.ReadDir(d.Path("epochs", "many"))
	assert.NoError(t, err)
	assert.True(t, len(entries) <= 100, "%d epochs are kept", len(entries))
	assert.ErrorIs(t, "an epoch that was taken away", d.Admit("many", 1), driver.ErrFenced)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	path := d.Path("servers", "x")
	assert.NoError(t, d.Create(path, []byte("one")))
	assert.ErrorIs(t, "creating it twice", d.Create(path, []byte("two")), fs.ErrExist)
	assert.NoError(t, d.Replace(path, []byte("three")))
	refuses := errors.New("it was touched")
	assert.ErrorIs(t, "replacing what was touched", d.ReplaceIf(path, []byte("four"), func() error { return refuses }), refuses)
	content := framework.ReadFile(t, path)
	assert.Equal(t, "it holds", content, "three")
	assert.NoError(t, d.Discard(path))
	assert.ErrorIs(t, "discarding it twice", d.Discard(path), fs.ErrNotExist)
	left, err := os.ReadDir(d.Path("tmp"))
	assert.NoError(t, err)
	assert.True(t, len(left) == 0, "left behind: %v", left)
}

// TestSweep checks that an unfinished file stays as long as its process needs it, and
// that the remains of a killed process are removed at the next opportunity.
func TestSweep(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	whole, remove, err := d.Temp()
	assert.NoError(t, err)
	disk := filepath.Join(whole, "disk")
	assert.NoError(t, os.WriteFile(disk, []byte("half"), 0o600))
	old := time.Now().Add(-time.Hour)
	assert.NoError(t, os.Chtimes(whole, old, old))
	for name, next := range map[string]func(){
		"another process opens the engine": func() { openDir(t, d.Path()) },
		"another server is made":           func() { makeAndRemove(t, d) },
	} {
		half := d.Path("tmp", "make-half")
		assert.NoError(t, os.MkdirAll(filepath.Join(half, "vm"), 0o700))
		assert.NoError(t, os.WriteFile(d.Path("tmp", "write-half"), []byte("{"), 0o600))
		assert.NoError(t, os.WriteFile(d.Path("tmp", "gone-half"), nil, 0o600))
		next()
		left := listNames(t, d.Path("tmp"))
		assert.True(t, slices.Equal(left, []string{filepath.Base(whole)}), "%s: there are %q in tmp, want %s alone", name, left, filepath.Base(whole))
	}
	content, err := os.ReadFile(disk)
	assert.True(t, err == nil && string(content) == "half", "what is being made is %q, %v", content, err)
	remove()
	left := listNames(t, d.Path("tmp"))
	assert.True(t, len(left) == 0, "left behind: %q", left)
}

func makeAndRemove(t *testing.T, d *statedir.Dir) {
	t.Helper()
	_, remove, err := d.Temp()
	assert.NoError(t, err)
	remove()
}

func listNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	all := make([]string, len(entries))
	for i, entry := range entries {
		all[i] = entry.Name()
	}
	return all
}

// TestSweepRace checks that a sweep never removes a file that another process is
// making.
func TestSweepRace(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			path := d.Path("servers", strconv.Itoa(n))
			for range 200 {
				tmp, remove, err := d.Temp()
				if err != nil {
					t.Error(err)
					return
				}
				half := filepath.Join(tmp, "half")
				assert.ReportError(t, errors.Join(os.WriteFile(half, nil, 0o600), d.Replace(path, nil), os.Remove(half)))
				remove()
			}
		})
	}
	all.Wait()
	left := listNames(t, d.Path("tmp"))
	assert.True(t, len(left) == 0, "left behind: %q", left)
}

// TestOpenExisting checks that it creates nothing, not even what is missing.
func TestOpenExisting(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new")
	assert.ErrorIs(t, "a folder that is not there", assert.ErrorOf(statedir.OpenExisting("the test's folder", path)), fs.ErrNotExist)
	if _, err := os.Stat(path); err == nil {
		t.Error("it was made")
	}
	d := openDir(t, path)
	assert.NoError(t, os.Remove(d.Path("locks")))
	assert.NoError(t, os.WriteFile(d.Path("tmp", "write-half"), nil, 0o600))
	there, err := statedir.OpenExisting("the test's folder", path)
	assert.NoError(t, err)
	assert.NoError(t, there.Reach())
	left := listNames(t, path)
	assert.True(t, !slices.Contains(left, "locks"), "it made a folder: %q", left)
	left = listNames(t, d.Path("tmp"))
	assert.True(t, len(left) == 1, "it swept: %q", left)
}

// TestReleaseWhileForking checks that a released lock is free, although a process that
// was forked meanwhile still has the file.
func TestReleaseWhileForking(t *testing.T) {
	t.Parallel()
	d := openDir(t, t.TempDir())
	l, err := d.Lock("uid")
	assert.NoError(t, err)
	held, err := syscall.Dup(statedir.FD(l))
	assert.NoError(t, err)
	defer func() { _ = syscall.Close(held) }()
	l.Release()
	again, err := d.Lock("uid")
	assert.NoError(t, err)
	again.Release()
}

// TestOthersFolder checks that root acts in no other user's folder, who could lead what root
// writes there elsewhere.
func TestOthersFolder(t *testing.T) {
	t.Parallel()
	user := framework.PlainUser(t)
	path := filepath.Join(t.TempDir(), "folder")
	openDir(t, path)
	assert.NoError(t, framework.ChownAll(path, user))
	for name, try := range map[string]func() (*statedir.Dir, error){
		"open":          func() (*statedir.Dir, error) { return statedir.Open("the test's folder", path) },
		"open existing": func() (*statedir.Dir, error) { return statedir.OpenExisting("the test's folder", path) },
	} {
		assert.ErrorSays(t, name, assert.ErrorOf(try()), fmt.Sprintf("belongs to user ID %d, and root acts in no other user's folder", user.Uid))
	}
}
