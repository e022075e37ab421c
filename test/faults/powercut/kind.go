// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

const clusterID = "cluster-1"

// inputsEnv is the variable with the inputs, in JSON, for the process that runs a workload.
const inputsEnv = "DROVER_POWERCUT_INPUTS"

// inputs are the arguments of a workload.
type inputs struct {
	// Driver is qemu or fake, and Dir its folder.
	Driver, Dir string
	// Image is the file of an image, which is also served at URL.
	Image, URL string
	// Container is a container image, and Kernel the folder of the files that boot it.
	Container, Kernel string
}

// open returns the workload.
func (in inputs) open(program *machine.Program) (*workload, error) {
	if in.Driver == "fake" {
		return newFakeWorkload(in)
	}
	return newQEMUWorkload(in, program)
}

// RunWorkload runs a workload if Kind has started this process to run one, and reports whether
// it did. A test program must call it first.
func RunWorkload(ctx context.Context) (ran bool, err error) {
	text := os.Getenv(inputsEnv)
	if text == "" {
		return false, nil
	}
	var in inputs
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		return true, err
	}
	w, err := in.open(nil)
	if err != nil {
		return true, err
	}
	return true, w.run(ctx)
}

// sizes has the options for each size.
var sizes = map[lab.Size]Options{
	lab.SizeShort:   {Random: 2, Share: 60},
	lab.SizeDefault: {Random: 2, Share: 5},
	lab.SizeFull:    {Random: 6, Share: 1},
}

// Kind returns the kind of fault for the folder of a driver.
func Kind(driver string) lab.Kind {
	in := []lab.Size{lab.SizeDefault, lab.SizeFull}
	if driver == "fake" {
		in = append(in, lab.SizeShort)
	}
	return lab.Kind{
		Name: "power cuts, " + driver, NeedsNoLab: true, Sizes: in,
		Explore: func(ctx context.Context, _ *lab.Lab, size lab.Size) (lab.Result, error) {
			o := sizes[size]
			if driver == "fake" {
				o.Share = 1 // its folder has few states
			}
			return explore(ctx, driver, o)
		},
		Replay: func(ctx context.Context, _ *lab.Lab, folder string) (lab.Result, error) {
			return replay(ctx, driver, folder)
		},
	}
}

// explore records a workload and checks the states after power cuts.
func explore(ctx context.Context, driver string, o Options) (lab.Result, error) {
	begin := time.Now()
	e, err := newEnvironment(ctx, driver)
	if err != nil {
		return lab.Result{}, err
	}
	defer e.close()
	recording, err := e.record(ctx)
	if err != nil {
		return lab.Result{}, err
	}
	c := &checker{environment: e, recording: recording, end: recording.End()}
	count, err := recording.States(o, func(s State) error { return c.check(ctx, s) })
	if errors.Is(err, errEnough) {
		err = nil
	}
	return lab.Result{
		Points: recording.Len(), Runs: count, Violations: c.violations, Took: time.Since(begin),
		Notes: []string{fmt.Sprintf("%d changes of the folder, one of %d states checked", recording.Len(), o.Share)},
	}, err
}

// replay checks a folder that was kept for a violation. It cannot check the content of disks.
func replay(ctx context.Context, driver, folder string) (lab.Result, error) {
	e, err := newEnvironment(ctx, driver)
	if err != nil {
		return lab.Result{}, err
	}
	defer e.close()
	var marks []string
	content, err := os.ReadFile(folder + marksSuffix)
	if err == nil {
		err = json.Unmarshal(content, &marks)
	}
	if err != nil {
		return lab.Result{}, err
	}
	dir := filepath.Join(e.dir, "again")
	if err := os.CopyFS(dir, os.DirFS(folder)); err != nil {
		return lab.Result{}, err
	}
	c := &checker{environment: e}
	r := lab.Result{Points: 1, Runs: 1}
	if err := c.checkFolder(ctx, marks, dir); err != nil {
		r.Violations = []lab.Violation{{Case: folder, Rule: rules.Converges, Text: err.Error()}}
	}
	return r, nil
}

// environment has the folder and the servers with which workloads run.
type environment struct {
	inputs

	dir      string
	server   *http.Server
	registry *httptest.Server
	program  *machine.Program
}

func newEnvironment(ctx context.Context, driver string) (*environment, error) {
	dir, err := os.MkdirTemp("", "drover-powercut-")
	if err != nil {
		return nil, err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return nil, err
	}
	e := &environment{inputs: inputs{Driver: driver}, dir: dir}
	if driver != "fake" {
		err = e.addImage(ctx)
	}
	if err != nil {
		e.close()
		return nil, err
	}
	return e, nil
}

// addImage builds and serves an image.
func (e *environment) addImage(ctx context.Context) error {
	images := filepath.Join(e.dir, "images")
	e.Image = filepath.Join(images, "boot.img")
	if err := os.Mkdir(images, 0o755); err != nil {
		return err
	}
	if err := framework.AssembleBootGuest(ctx, e.Image); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	e.server = &http.Server{Handler: http.FileServer(http.Dir(images)), ReadHeaderTimeout: stepTimeout}
	go func() { _ = e.server.Serve(listener) }()
	e.URL = "http://" + listener.Addr().String() + "/boot.img"
	if err := e.addContainer(ctx); err != nil {
		return err
	}
	// All drivers share what the first one found out about QEMU, because this takes long.
	first, err := newQEMUWorkload(e.inputsIn(filepath.Join(e.dir, "first")), nil)
	if err != nil {
		return err
	}
	e.program = first.program
	return nil
}

// addContainer serves a container image, and builds the kernel that boots it.
func (e *environment) addContainer(ctx context.Context) error {
	image, err := framework.MakeBusyBoxImage(ctx, v1.Config{Volumes: map[string]struct{}{"/home": {}}})
	if err != nil {
		return err
	}
	if e.registry, e.Container, err = framework.StartRegistryOf(image); err != nil {
		return err
	}
	guest, err := framework.BuildImageGuest()
	e.Kernel = filepath.Dir(guest.Kernel)
	return err
}

// inputsIn returns the inputs for another folder.
func (e *environment) inputsIn(dir string) inputs {
	in := e.inputs
	in.Dir = dir
	return in
}

func (e *environment) close() {
	if e.server != nil {
		_ = e.server.Close()
	}
	if e.registry != nil {
		e.registry.Close()
	}
	_ = os.RemoveAll(e.dir)
}

// record runs the workload under strace.
func (e *environment) record(ctx context.Context) (*Recording, error) {
	dir := filepath.Join(e.dir, "engine")
	text, err := json.Marshal(e.inputsIn(dir))
	if err := errors.Join(err, os.Mkdir(dir, 0o700)); err != nil {
		return nil, err
	}
	return Record(ctx, dir, os.Args[0], nil, []string{inputsEnv + "=" + string(text)})
}
