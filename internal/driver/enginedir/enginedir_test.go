// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package enginedir_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/enginedir"
)

func open(t *testing.T, path string) *enginedir.Dir {
	t.Helper()
	d, err := enginedir.Open("the test's folder", path, time.Now(), "servers")
	must(t, err)
	return d
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantKind(t *testing.T, what string, err, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: got error %v, want the kind %q", what, err, kind)
	}
}

// TestIdentity : it lasts, all who open the folder at once agree on it, and a
// folder with another one is another engine.
func TestIdentity(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "new", "engine")
	var all sync.WaitGroup
	var ids sync.Map
	for range 8 {
		all.Go(func() {
			d, err := enginedir.Open("the test's folder", path, time.Now())
			if err != nil {
				t.Error(err)
				return
			}
			id, err := d.ID()
			if err != nil {
				t.Error(err)
			}
			ids.Store(id, true)
		})
	}
	all.Wait()
	n := 0
	ids.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("the folder has %d identities", n)
	}
	d := open(t, path)
	must(t, d.Reach())
	must(t, os.WriteFile(d.Path(enginedir.IDFile), []byte("another\n"), 0o600))
	wantKind(t, "another identity", d.Reach(), driver.ErrUnavailable)
	must(t, os.Rename(path, path+".away"))
	wantKind(t, "no folder", d.Reach(), driver.ErrUnavailable)
	_, err := d.Lock("uid")
	wantKind(t, "lock without a folder", err, driver.ErrUnavailable)
}

func TestLock(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	held, err := d.Lock("uid")
	must(t, err)
	_, err = d.Lock("uid")
	wantKind(t, "a lock that is held", err, driver.ErrRetry)
	other, err := d.Lock("other")
	must(t, err)
	other.Release()
	held.Remove()
	again, err := d.Lock("uid")
	must(t, err)
	again.Release()
}

// TestLockRemoved : many callers that remove the lock as they leave never hold
// it at the same time.
func TestLockRemoved(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
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
	if taken == 0 {
		t.Error("nobody got the lock")
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
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
		if errors.Is(err, driver.ErrFenced) != c.fenced || (err != nil && !c.fenced) {
			t.Errorf("cluster %s, epoch %d: got %v, want fenced %v", c.cluster, c.epoch, err, c.fenced)
		}
	}
	for n := range uint64(300) {
		must(t, d.Admit("many", n+1))
	}
	entries, err := os.ReadDir(d.Path("epochs", "many"))
	must(t, err)
	if len(entries) > 100 {
		t.Errorf("%d epochs are kept", len(entries))
	}
	wantKind(t, "an epoch that was taken away", d.Admit("many", 1), driver.ErrFenced)
}

func TestFiles(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	path := d.Path("servers", "x")
	must(t, d.Create(path, []byte("one")))
	if err := d.Create(path, []byte("two")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("creating it twice: %v", err)
	}
	must(t, d.Replace(path, []byte("three")))
	refuses := errors.New("it was touched")
	if err := d.ReplaceIf(path, []byte("four"), func() error { return refuses }); !errors.Is(err, refuses) {
		t.Errorf("replacing what was touched: %v", err)
	}
	content, err := os.ReadFile(path)
	must(t, err)
	if string(content) != "three" {
		t.Errorf("it holds %q", content)
	}
	must(t, d.Discard(path))
	if err := d.Discard(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("discarding it twice: %v", err)
	}
	left, err := os.ReadDir(d.Path("tmp"))
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	half, err := d.Temp()
	must(t, err)
	must(t, os.WriteFile(filepath.Join(half, "disk"), []byte("half"), 0o600))
	open(t, d.Path())
	_, err = os.Stat(half)
	must(t, err)
	_, err = enginedir.Open("the test's folder", d.Path(), time.Now().Add(time.Hour))
	must(t, err)
	if _, err := os.Stat(half); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("what is old and half done is still there: %v", err)
	}
}

// TestReleaseWhileForking : a lock that was given back is free, although a
// process that was forked meanwhile still has the file.
func TestReleaseWhileForking(t *testing.T) {
	t.Parallel()
	d := open(t, t.TempDir())
	l, err := d.Lock("uid")
	must(t, err)
	held, err := syscall.Dup(enginedir.FD(l))
	must(t, err)
	defer func() { _ = syscall.Close(held) }()
	l.Release()
	again, err := d.Lock("uid")
	must(t, err)
	again.Release()
}
