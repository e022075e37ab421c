// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
)

// hand is what a person can do to either form of the engine.
type hand struct {
	edit   func(t *testing.T, uid types.UID, change func(*fake.Record))
	remove func(t *testing.T, s driver.Server)
}

func (h hand) state(state driver.State, exit *fake.Exit) func(*testing.T, driver.Server) {
	return func(t *testing.T, s driver.Server) {
		t.Helper()
		h.edit(t, s.UID, func(r *fake.Record) { r.State, r.Exit = state, exit })
	}
}

func (h hand) hands() drivertest.Hands {
	return drivertest.Hands{
		Kill:  h.state(driver.StateStopped, &fake.Exit{Code: 137}),
		Stop:  h.state(driver.StateStopped, nil),
		Start: h.state(driver.StateRunning, &fake.Exit{}),
		Pause: h.state(driver.StatePaused, nil),
		Exit: func(t *testing.T, s driver.Server, code int) {
			t.Helper()
			h.state(driver.StateStopped, &fake.Exit{Code: code})(t, s)
		},
		Remove: h.remove,
		Burn: func(t *testing.T, s driver.Server) {
			t.Helper()
			h.edit(t, s.UID, func(r *fake.Record) { r.Load = 1 })
		},
		IgnoreStop: func(t *testing.T, s driver.Server) {
			t.Helper()
			h.edit(t, s.UID, func(r *fake.Record) { r.IgnoreShutdown = true })
		},
	}
}

func spec(*testing.T) driver.ServerSpec {
	return driver.ServerSpec{
		CPUMilli: 2000, MemoryBytes: 4e9, RootDiskBytes: 40e9,
		Image: driver.Image{Source: "first"},
		Ports: []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}},
	}
}

// times make every state that takes time last long enough to be seen.
func times(o fake.Options) fake.Options {
	o.BootTime, o.ShutdownTime, o.Latency = 30*time.Millisecond, 30*time.Millisecond, time.Millisecond
	return o
}

func open(t *testing.T, o fake.Options) *fake.Driver {
	t.Helper()
	d, err := fake.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestContractInMemory(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]func(fake.Options) fake.Options{
		"at once":     func(o fake.Options) fake.Options { return o },
		"taking time": times,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memory := fake.NewMemory(clock.RealClock{})
			h := memoryHand(memory)
			drivertest.Run(t, drivertest.Harness{
				Open: func(t *testing.T, clusterID string) driver.Driver {
					return open(t, shape(fake.Options{ClusterID: clusterID, Memory: memory}))
				},
				Spec: spec, OtherImage: "second", ResizesLive: true, Hands: h.hands(),
				Losable: func(t *testing.T, clusterID string) drivertest.Losable {
					own := fake.NewMemory(clock.RealClock{})
					return drivertest.Losable{
						Driver:  open(t, shape(fake.Options{ClusterID: clusterID, Memory: own})),
						Lose:    func() { own.SetAvailable(false) },
						Restore: func() { own.SetAvailable(true) },
					}
				},
			})
		})
	}
}

func memoryHand(memory *fake.Memory) hand {
	return hand{
		edit: func(t *testing.T, uid types.UID, change func(*fake.Record)) {
			t.Helper()
			if err := memory.Edit(uid, change); err != nil {
				t.Fatal(err)
			}
		},
		remove: func(_ *testing.T, s driver.Server) {
			if s.Retained {
				memory.RemoveRetained(s.ID)
				return
			}
			memory.Remove(s.UID)
		},
	}
}

func TestContractInDir(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]func(fake.Options) fake.Options{
		"at once":     func(o fake.Options) fake.Options { return o },
		"taking time": times,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "engine")
			drivertest.Run(t, drivertest.Harness{
				Open: func(t *testing.T, clusterID string) driver.Driver {
					return open(t, shape(fake.Options{ClusterID: clusterID, Dir: dir}))
				},
				Spec: spec, OtherImage: "second", ResizesLive: true, Hands: dirHand(dir).hands(),
				Losable: func(t *testing.T, clusterID string) drivertest.Losable {
					own := filepath.Join(t.TempDir(), "own")
					return drivertest.Losable{
						Driver:  open(t, shape(fake.Options{ClusterID: clusterID, Dir: own})),
						Lose:    func() { rename(t, own, own+".away") },
						Restore: func() { rename(t, own+".away", own) },
					}
				},
				Visible: func(t *testing.T, _ driver.Server) string { return contentsOf(t, dir) },
			})
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Error(err)
	}
}

func dirHand(dir string) hand {
	return hand{
		edit: func(t *testing.T, uid types.UID, change func(*fake.Record)) {
			t.Helper()
			editFile(t, filepath.Join(dir, string(uid)+".json"), change)
		},
		remove: func(t *testing.T, s driver.Server) {
			t.Helper()
			path := filepath.Join(dir, string(s.UID)+".json")
			if s.Retained {
				path = filepath.Join(dir, "retained", string(s.UID)+"."+s.ID+".json")
			}
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		},
	}
}

// editFile edits a server's file as an editor does that writes a new file and
// moves it into place.
func editFile(t *testing.T, path string, change func(*fake.Record)) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r fake.Record
	if err := json.Unmarshal(content, &r); err != nil {
		t.Fatal(err)
	}
	change(&r)
	content, err = json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"~", content, 0o600); err != nil {
		t.Fatal(err)
	}
	rename(t, path+"~", path)
}

// contentsOf is all text in a folder, names included.
func contentsOf(t *testing.T, dir string) string {
	t.Helper()
	text := ""
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || (err == nil && entry.IsDir()) {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text += path + "\n" + string(content)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}
