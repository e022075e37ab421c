// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/powercut"
)

// Variables of the process that runs the workload.
const (
	variableDir   = "POWERCUT_DIR"
	variableImage = "POWERCUT_IMAGE"
	variableURL   = "POWERCUT_URL"
)

// Servers of the workload.
const (
	uidKept    types.UID = "00000000-0000-4000-8000-00000000000a"
	uidFetched types.UID = "00000000-0000-4000-8000-00000000000b"
	uidLast    types.UID = "00000000-0000-4000-8000-00000000000c"
)

// place is where a server is.
type place string

const (
	placeNone     place = "nowhere"
	placeHere     place = "there"
	placeRetained place = "retained"
)

// qemuStep is a step of the workload, and where it leaves its server.
type qemuStep struct {
	name string
	uid  types.UID
	to   place
	do   func(context.Context, *qemuWorkload) error
}

// qemuWorkload uses a driver as the controller does.
type qemuWorkload struct {
	driver *qemu.Driver
	specs  map[types.UID]driver.ServerSpec
}

func newQEMUWorkload(dir, bootImage, url string, program *machine.Program) (*qemuWorkload, error) {
	d, err := qemu.New(qemu.Options{
		ClusterID: "cluster-1", Dir: dir, ImageDirs: []string{filepath.Dir(bootImage)}, Accel: machine.AccelTCG,
		User: machineUser(), UserIDs: launch.DefaultUserIDs, Fetch: image.Policy{Hosts: []string{"127.0.0.1"}},
	})
	if err != nil {
		return nil, err
	}
	if program != nil {
		d.Program = program
	}
	content, err := os.ReadFile(bootImage)
	if err != nil {
		return nil, err
	}
	w := &qemuWorkload{driver: d, specs: map[types.UID]driver.ServerSpec{}}
	for name, uid := range map[string]types.UID{"kept": uidKept, "fetched": uidFetched, "last": uidLast} {
		w.specs[uid] = driver.ServerSpec{
			Target: driver.Target{UID: uid, Epoch: 1}, Namespace: "default", Name: name,
			Power: driver.PowerOff, RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 16 << 20,
			RootDiskBytes: 1 << 20, Image: driver.Image{Source: bootImage}, UserData: driver.NewSecret("#cloud-config\n"),
			Volumes: []driver.Volume{{Name: "data", SizeBytes: 1 << 20}},
		}
	}
	fetched := w.specs[uidFetched]
	fetched.Image = driver.Image{Source: url, Checksum: fmt.Sprintf("sha256:%x", sha256.Sum256(content))}
	w.specs[uidFetched] = fetched
	return w, nil
}

func machineUser() string {
	if os.Geteuid() == 0 {
		return launch.DefaultUser
	}
	return ""
}

func qemuSteps() []qemuStep {
	create := func(uid types.UID) func(context.Context, *qemuWorkload) error {
		return func(ctx context.Context, w *qemuWorkload) error { return w.create(ctx, uid) }
	}
	remove := func(uid types.UID, retain bool) func(context.Context, *qemuWorkload) error {
		return func(ctx context.Context, w *qemuWorkload) error { return w.remove(ctx, uid, retain) }
	}
	return []qemuStep{
		{"create kept", uidKept, placeHere, create(uidKept)},
		{"use kept", uidKept, placeHere, func(_ context.Context, w *qemuWorkload) error {
			return w.writeGuestData(uidKept, instance.RootDiskFile)
		}},
		{"run kept", uidKept, placeHere, func(ctx context.Context, w *qemuWorkload) error { return w.run(ctx, uidKept) }},
		{"use volume", uidKept, placeHere, func(_ context.Context, w *qemuWorkload) error {
			return w.writeGuestData(uidKept, instance.VolumeFile("data"))
		}},
		{"create fetched", uidFetched, placeHere, create(uidFetched)},
		{"retain kept", uidKept, placeRetained, remove(uidKept, true)},
		{"create last", uidLast, placeHere, create(uidLast)},
		{"delete fetched", uidFetched, placeNone, remove(uidFetched, false)},
		{"delete last", uidLast, placeNone, remove(uidLast, false)},
	}
}

// create repeats Ensure until the server is there, since its image is fetched first.
func (w *qemuWorkload) create(ctx context.Context, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		s, err := w.driver.Ensure(ctx, w.specs[uid])
		if err != nil || s.State != driver.StatePending {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("its image was not fetched: %s", s.Progress)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// run starts a machine, which makes its volume, and ends it.
func (w *qemuWorkload) run(ctx context.Context, uid types.UID) error {
	spec := w.specs[uid]
	spec.RootDiskBytes *= 2
	for _, step := range []struct {
		power driver.Power
		state driver.State
	}{{driver.PowerOn, driver.StateRunning}, {driver.PowerOff, driver.StateStopped}} {
		spec.Power = step.power
		if err := w.reach(ctx, spec, step.state); err != nil {
			return err
		}
	}
	return nil
}

func (w *qemuWorkload) reach(ctx context.Context, spec driver.ServerSpec, want driver.State) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	spec.StopBy = time.Now()
	for {
		s, err := w.driver.Ensure(ctx, spec)
		if err != nil || s.State == want {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it is %s, not %s", s.State, want)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// remove is what a deletion does: it is done once nothing is left, or once the server is
// released.
func (w *qemuWorkload) remove(ctx context.Context, uid types.UID, retain bool) error {
	for {
		err := w.driver.Delete(ctx, driver.Target{UID: uid, Epoch: 1}, retain)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// guestData is what a guest has written to its disk and flushed.
var guestData = bytes.Repeat([]byte("guest data\n"), 4096/11)

func (w *qemuWorkload) writeGuestData(uid types.UID, disk string) error {
	f, err := os.OpenFile(w.driver.InstanceOf(uid).File(disk), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(guestData, info.Size())
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// TestQEMUWorkload is what the process under strace runs.
func TestQEMUWorkload(t *testing.T) {
	dir := os.Getenv(variableDir)
	if dir == "" {
		t.Skip("it is run by TestQEMU")
	}
	w, err := newQEMUWorkload(dir, os.Getenv(variableImage), os.Getenv(variableURL), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range qemuSteps() {
		powercut.Mark("begin " + s.name)
		if err := s.do(t.Context(), w); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		powercut.Mark("end " + s.name)
	}
}

// TestQEMU cuts the power while machines are created, released and deleted. What was reported
// as done stays, what was begun can be finished, and guests keep what they had written.
func TestQEMU(t *testing.T) {
	t.Parallel()
	framework.QEMUBinary(t)
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	images := filepath.Join(base, "images")
	if err := os.Mkdir(images, 0o755); err != nil { //nolint:gosec // images are not secret
		t.Fatal(err)
	}
	bootImage := framework.BuildBootGuest(t, images, "P", false)
	server := httptest.NewServer(http.FileServer(http.Dir(images)))
	defer server.Close()
	url := server.URL + "/" + filepath.Base(bootImage)
	engine := filepath.Join(base, "engine")
	if err := os.Mkdir(engine, 0o700); err != nil {
		t.Fatal(err)
	}
	recording, err := powercut.Record(t.Context(), engine, os.Args[0], []string{"-test.run=^TestQEMUWorkload$"},
		[]string{variableDir + "=" + engine, variableImage + "=" + bootImage, variableURL + "=" + url})
	if err != nil {
		t.Fatal(err)
	}
	first, err := newQEMUWorkload(filepath.Join(base, "first"), bootImage, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	// All drivers share what the first has learned of QEMU, which takes as long as all else.
	c := &qemuChecker{t: t, recording: recording, base: base, image: bootImage, url: url, program: first.driver.Program}
	begin := time.Now()
	count, err := recording.States(powercut.Options{Random: randomChoices, Share: share(), Seed: 1}, c.check)
	t.Logf("%d changes, looked at %d states, %d violations, %s", recording.Len(), count, c.violations, time.Since(begin).Round(time.Second))
	if err != nil {
		t.Fatal(err)
	}
}

// share returns the share of the states that is looked at: all, or one of so many.
func share() int {
	if os.Getenv("DROVER_FAULTS") == "full" {
		return 1
	}
	return 25
}

// randomChoices is how many random choices of lost and torn writes are looked at for each
// prefix.
const randomChoices = 2

// qemuChecker opens the driver on what a power cut has left.
type qemuChecker struct {
	t                *testing.T
	recording        *powercut.Recording
	base, image, url string
	program          *machine.Program
	violations       int
}

func (c *qemuChecker) check(s powercut.State) error {
	dir := filepath.Join(c.base, fmt.Sprintf("state-%d", s.Number))
	if err := s.Write(dir); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := c.checkDriver(s, dir); err != nil {
		c.violations++
		c.t.Errorf("state %d, %s, marks %q: %v", s.Number, s.Text, lastOf(s.Marks), err)
		if c.violations >= 20 {
			return errors.New("too many violations")
		}
	}
	return nil
}

func lastOf(marks []string) string {
	if len(marks) == 0 {
		return ""
	}
	return marks[len(marks)-1]
}

// checkDriver opens the driver, compares what it has with what was done, and finishes what
// was begun.
func (c *qemuChecker) checkDriver(s powercut.State, dir string) error {
	w, err := newQEMUWorkload(dir, c.image, c.url, c.program)
	if err != nil {
		return err
	}
	defer func() { _ = w.driver.Close(c.t.Context()) }()
	done, begun := progress(s.Marks)
	if err := c.checkPlaces(w, done, begun); err != nil {
		return err
	}
	if err := c.checkDisks(w, done, begun); err != nil {
		return err
	}
	if begun != nil {
		if err := begun.do(c.t.Context(), w); err != nil {
			return fmt.Errorf("%s cannot be finished: %w", begun.name, err)
		}
		if err := c.checkPlaces(w, append(done, *begun), nil); err != nil {
			return fmt.Errorf("once finished: %w", err)
		}
	}
	return c.checkRemoval(w, dir)
}

// progress returns the steps that had ended, and the one that had only begun.
func progress(marks []string) (done []qemuStep, begun *qemuStep) {
	for _, step := range qemuSteps() {
		for _, mark := range marks {
			switch mark {
			case "begin " + step.name:
				begun = &step
			case "end " + step.name:
				done, begun = append(done, step), nil
			}
		}
	}
	return done, begun
}

// checkPlaces checks where each server is.
func (c *qemuChecker) checkPlaces(w *qemuWorkload, done []qemuStep, begun *qemuStep) error {
	servers, err := w.driver.List(c.t.Context())
	if err != nil {
		return err
	}
	found := map[types.UID][]place{}
	for _, s := range servers {
		if s.Err != nil {
			return fmt.Errorf("server %s: %w", s.Name, s.Err)
		}
		at := placeHere
		if s.Retained {
			at = placeRetained
		}
		found[s.UID] = append(found[s.UID], at)
	}
	for uid, spec := range w.specs {
		want := placeNone
		for _, step := range done {
			if step.uid == uid {
				want = step.to
			}
		}
		is := placeNone
		if len(found[uid]) > 0 {
			is = found[uid][0]
		}
		if len(found[uid]) > 1 || is != want && (begun == nil || begun.uid != uid || is != begun.to) {
			return fmt.Errorf("server %s is %q, and was %s", spec.Name, found[uid], want)
		}
	}
	return nil
}

// checkDisks checks that the disks that are there have what they had when they were last
// changed.
func (c *qemuChecker) checkDisks(w *qemuWorkload, done []qemuStep, begun *qemuStep) error {
	for _, step := range done {
		inst := w.driver.InstanceOf(step.uid)
		if there, err := inst.HasDirectory(); !there || err != nil {
			continue
		}
		if step.to != placeHere {
			continue
		}
		at, _ := c.recording.After("end " + c.lastOf(step.uid, done))
		for _, name := range []string{instance.RootDiskFile, instance.VolumeFile("data")} {
			want, made := at.FileAt(instance.VMsDir + "/" + string(step.uid) + "/" + name)
			if !made {
				continue // a volume is made at the first start
			}
			have, err := os.ReadFile(inst.File(name))
			if begun != nil && begun.uid == step.uid && len(have) > len(want) {
				have = have[:len(want)] // the rest is being written
			}
			if err != nil || !bytes.Equal(have, want) {
				return fmt.Errorf("%s: %s was %d bytes and is %d others (%v)", step.name, name, len(want), len(have), err)
			}
		}
	}
	return nil
}

// lastOf returns the name of the last step of a server.
func (c *qemuChecker) lastOf(uid types.UID, done []qemuStep) (name string) {
	for _, step := range done {
		if step.uid == uid {
			name = step.name
		}
	}
	return name
}

// checkRemoval deletes all servers, of which nothing may be left.
func (c *qemuChecker) checkRemoval(w *qemuWorkload, dir string) error {
	for uid, spec := range w.specs {
		if err := w.remove(c.t.Context(), uid, false); err != nil {
			return fmt.Errorf("server %s cannot be deleted: %w", spec.Name, err)
		}
	}
	again, err := newQEMUWorkload(dir, c.image, c.url, c.program) // it also clears up
	if err != nil {
		return fmt.Errorf("opened again: %w", err)
	}
	_ = again.driver.Close(c.t.Context())
	for _, name := range []string{instance.VMsDir, "tmp", "locks"} {
		left, err := filepath.Glob(filepath.Join(dir, name, "*"))
		if err != nil || len(left) > 0 {
			return fmt.Errorf("left are %s (%w)", strings.Join(left, ", "), err)
		}
	}
	return nil
}
