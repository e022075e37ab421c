// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Fake is the engine whose servers are files.
type Fake struct {
	// Instant engines start and stop a server within a call, so that one call restarts it.
	Instant bool
}

// Name implements Engine.
func (e Fake) Name() string {
	if e.Instant {
		return "instant"
	}
	return fake.Name
}

// Runs implements Engine.
func (e Fake) Runs(workload string) bool {
	return !e.Instant || slices.Contains([]string{"create-delete", "power", "restart"}, workload)
}

// Dir is the engine's folder.
func (Fake) Dir(w *World) string { return filepath.Join(w.Dir, "fake") }

// Journal is the file in which the driver records its changes.
func (Fake) Journal(w *World) string { return filepath.Join(w.Dir, "journal") }

// FaultsFile is the file that makes calls of the driver fail.
func (Fake) FaultsFile(w *World) string { return filepath.Join(w.Dir, "faults.yaml") }

// Args implements Engine.
func (e Fake) Args(w *World) []string {
	args := []string{
		"--vm-driver=fake", "--fake-dir=" + e.Dir(w), "--fake-journal=" + e.Journal(w), "--fake-faults=" + e.FaultsFile(w),
	}
	if !e.Instant {
		args = append(args, "--fake-boot-time=20ms", "--fake-shutdown-time=20ms")
	}
	return args
}

// Variables implements Engine.
func (Fake) Variables(*World) []string { return nil }

// Prepare implements Engine.
func (e Fake) Prepare(_ context.Context, w *World) error {
	return errors.Join(foreignServers.write(e.Dir(w)), os.WriteFile(e.Journal(w), nil, 0o600))
}

// Inspect implements Engine.
func (e Fake) Inspect(_ context.Context, w *World, processes []rules.Process) (Observed, error) {
	o := newObserved()
	records, err := e.readRecords(w)
	if err != nil {
		return o, err
	}
	for _, r := range records {
		o.Servers = append(o.Servers, serverOf(r))
	}
	if err := w.readJournal(e.Journal(w), processes, &o); err != nil {
		return o, err
	}
	o.Violations = append(o.Violations, foreignServers.check(e.Dir(w))...)
	o.Text, err = readAll(e.Dir(w))
	return o, err
}

func (e Fake) readRecords(w *World) ([]fake.Record, error) {
	var all []fake.Record
	for _, sub := range []string{"", "retained"} {
		records, _, err := readRecords[fake.Record](filepath.Join(e.Dir(w), sub, "*.json"))
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if r.ClusterID == w.ClusterID {
				r.Retained = sub != ""
				all = append(all, r)
			}
		}
	}
	return all, nil
}

func serverOf(r fake.Record) Server {
	s := rules.ServerOf(&r, time.Now())
	r.Namespace, r.UID, r.ID, r.ClusterID, r.Run, r.Epoch, r.State, r.Exit = "", "", "", "", "", 0, "", nil
	r.StartedAt, r.UpAt, r.StopsAt = time.Time{}, time.Time{}, time.Time{}
	content, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	s.Config = string(content)
	return s
}

// SetFaults writes the file that makes calls of the driver fail. An empty content ends all faults.
func (e Fake) SetFaults(w *World, content string) error {
	path := e.FaultsFile(w)
	return errors.Join(os.WriteFile(path+".next", []byte(content), 0o600), os.Rename(path+".next", path))
}

// Outage implements Engine.
func (e Fake) Outage(_ context.Context, w *World, exchanged bool) (back func() error, err error) {
	if !exchanged {
		return func() error { return e.SetFaults(w, "") }, e.SetFaults(w, `{"*": {engineUnavailable: true}}`)
	}
	other := e.Dir(w) + "-other"
	if err := makeFolderEngine(other); err != nil {
		return nil, err
	}
	back = func() error {
		return errors.Join(exchangeFolders(e.Dir(w), other), checkEmpty(filepath.Join(other, "*.json")))
	}
	return back, exchangeFolders(e.Dir(w), other)
}

func exchangeFolders(dir, other string) error {
	return unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, other, unix.RENAME_EXCHANGE)
}

// makeFolderEngine makes an empty engine with another id in a folder.
func makeFolderEngine(dir string) error {
	id := []byte("5dd7c1c3-5c3a-4b4e-9f55-000000000000\n")
	return errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, statedir.IDFile), id, 0o600))
}

// checkEmpty fails if Drover created a server on an engine to which no VirtualMachine is bound.
func checkEmpty(servers string) error {
	found, err := filepath.Glob(servers)
	if len(found) > 0 {
		return fmt.Errorf("the other engine has the servers %v", found)
	}
	return err
}

// NewVM implements Engine.
func (Fake) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(fake.Name).UserDataSecret(SecretName, SecretKey)
}

// BreakImage implements Engine.
func (e Fake) BreakImage(_ context.Context, w *World, vm string) (image string, err error) {
	return "", e.SetFaults(w, vm+": {failCreate: 1000, kind: invalid, message: no such image}")
}

// RepairImage implements Engine.
func (e Fake) RepairImage(_ context.Context, w *World) (image string, err error) {
	return "good", e.SetFaults(w, "")
}

// Resize implements Engine.
func (Fake) Resize(vm *api.VirtualMachine) { setCPU(vm) }

// setCPU changes the CPUs, which can change while a server runs.
func setCPU(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceCPU] = resource.MustParse("1500m") }

// CleanUp implements Engine: the servers are removed with the world's folder.
func (Fake) CleanUp(context.Context, *World) error { return nil }

// readAll returns the content of all files below a folder.
func readAll(dir string) (string, error) {
	var all strings.Builder
	files := os.DirFS(dir)
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		var content []byte
		if err == nil && d.Type().IsRegular() {
			content, err = fs.ReadFile(files, path)
		}
		all.Write(content)
		if errors.Is(err, fs.ErrNotExist) { // removed concurrently
			return nil
		}
		return err
	})
	return all.String(), err
}
