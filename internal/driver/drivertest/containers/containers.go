// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containers has the tests for every driver that runs container images. A container and a
// machine of the same image and spec must behave alike; docs/drivers.md lists the exceptions.
//
// Start with Run. cases.go has the images and specs; framework.BusyBoxImage makes the images. RunImages does the same
// with images of real programs, which programs.go lists. RunWorkloads is for machines alone: workloads.go.
package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// Harness describes a driver to the cases.
type Harness struct {
	// Open returns a driver that pulls images by tag from a registry without TLS on this host. At the end
	// of the test it removes them from the engine.
	Open func(t *testing.T, registry string) driver.Driver
	// IsMachine is set if the driver boots an image in a virtual machine. A machine has a root disk of the
	// size in the spec, its command is not process 1 unless it is an init, and only its guest notices missing files of the image.
	// It takes seconds to boot, so that the gate runs only some of the cases.
	IsMachine bool
	// Dir has all files that the driver makes. It is empty for an engine elsewhere.
	Dir string
}

// Run runs all cases.
func Run(t *testing.T, h Harness) {
	t.Helper()
	e := newEnv(t, h)
	e.runCase(t, "Server", true, e.testServer)
	for _, init := range []driver.Init{"", driver.InitImage, driver.InitDrover} {
		e.runCase(t, "FirstProcess/"+string(init), false, func(t *testing.T) { e.testFirstProcess(t, init) })
	}
	e.runCase(t, "NoCommand", true, e.testNoCommand)
	e.runCase(t, "Volumes", false, e.testVolumes)
	for path, text := range badMountPaths {
		e.runCase(t, "MountPath"+path, true, func(t *testing.T) { e.testBadMountPath(t, path, text) })
	}
	e.runCase(t, "HealthCheck", false, e.testHealthCheck)
	e.runCase(t, "KernelSysctl", false, e.testKernelSysctl)
	e.runCase(t, "Files", true, e.testFiles)
	e.runCase(t, "Input", true, e.testInput)
	for name, init := range map[string]driver.Init{"Terminal": "", "TerminalOfFirstProcess": driver.InitImage} {
		e.runCase(t, name, false, func(t *testing.T) { e.testTerminal(t, init) })
	}
	for name, hasTerminal := range map[string]bool{"NoInput": false, "TerminalWithoutInput": true} {
		e.runCase(t, name, false, func(t *testing.T) { e.testNoInput(t, hasTerminal) })
	}
	for name, j := range jobs {
		e.runCase(t, "Job/"+name, j.inGate, func(t *testing.T) { e.testJob(t, j) })
	}
	for name, f := range faults {
		e.runCase(t, "Fault/"+name, false, func(t *testing.T) { e.testFault(t, f) })
	}
}

// env has the driver under test and its registry.
type env struct {
	Harness
	registry string
	driver   driver.Driver
}

func newEnv(t *testing.T, h Harness) *env {
	t.Helper()
	e := &env{Harness: h, registry: framework.NewRegistry(t, nil)}
	e.driver = h.Open(t, e.registry)
	return e
}

func (e *env) runCase(t *testing.T, name string, inGate bool, run func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		if e.IsMachine && !inGate {
			tier.Full(t, "each machine takes seconds to boot; the gate has a server and a job with all fields of a command")
		}
		run(t)
	})
}

// newSpec pushes an image with the configuration, and returns the spec of a server that runs it. The server
// is removed at the end of the case.
func (e *env) newSpec(t *testing.T, config v1.Config) driver.ServerSpec {
	t.Helper()
	return e.specOfImage(t, framework.BusyBoxImage(t, config))
}

// specOfImage is newSpec for an image that exists.
func (e *env) specOfImage(t *testing.T, image v1.Image) driver.ServerSpec {
	t.Helper()
	uid := uuid.NewUUID()
	source := e.registry + "/image:" + string(uid)
	framework.PushImage(t, source, image)
	target := driver.Target{UID: uid, Epoch: 1}
	t.Cleanup(func() {
		assert.Eventually(t, "the clean-up after the case", func(t testing.TB) error {
			err := e.driver.Delete(context.WithoutCancel(t.Context()), target, false)
			if errors.Is(err, driver.ErrNotFound) {
				return nil
			}
			return errors.Join(err, errors.New("the server is being removed"))
		})
	})
	return driver.ServerSpec{
		Target: target, Namespace: "default", Name: "test-vm", Power: driver.PowerOn, RestartPolicy: driver.RestartNever,
		CPUMilli: 1000, MemoryBytes: 128 << 20, RootDiskBytes: 1 << 30, Image: driver.Image{Source: source},
	}
}

// startRun repeats Ensure until it returns a run other than old. That run may have ended already.
func (e *env) startRun(t *testing.T, spec driver.ServerSpec, old string) (s driver.Server) {
	t.Helper()
	assert.Eventually(t, "Ensure begins a run", func(testing.TB) error {
		var err error
		s, err = e.driver.Ensure(t.Context(), spec)
		assert.Require(t, err == nil || errors.Is(err, driver.ErrRetry), "Ensure: %v", err)
		if s.Run == "" || s.Run == old {
			return fmt.Errorf("the server is %+v, %w", s, errors.Join(err, driver.ErrRetry))
		}
		return err
	})
	assert.True(t, len(s.Pending) == 0, "fields that wait for a restart right after the start: %v", s.Pending)
	return s
}

// wantExit waits until the server's run has ended, and checks its exit code, reason and message.
func (e *env) wantExit(t *testing.T, spec driver.ServerSpec, code int, message string) {
	t.Helper()
	var exit *driver.Exit
	assert.Eventually(t, "the server ends", func(t testing.TB) error {
		all, err := e.driver.List(t.Context(), spec.UID)
		if err != nil || len(all) != 1 || all[0].State != driver.StateStopped || all[0].Exit == nil {
			return fmt.Errorf("the list is %+v, %w", all, errors.Join(err, driver.ErrRetry))
		}
		exit = all[0].Exit
		return nil
	})
	reason := "Error"
	if code == 0 {
		reason = "Completed"
	}
	assert.True(t, exit.Code == code && exit.Reason == reason && exit.Message == message,
		"the exit is %+v, want code %d, reason %s and the message %q", exit, code, reason, message)
}

// readLog returns what a server has printed to standard output and standard error.
func (e *env) readLog(t testing.TB, spec driver.ServerSpec) (stdout, stderr string) {
	t.Helper()
	reader, ok := driver.As[driver.LogReader](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.LogReader")
	log, err := reader.Logs(t.Context(), spec.UID, driver.LogOptions{})
	assert.NoError(t, err)
	defer func() { _ = log.Close() }()
	split, ok := log.(driver.SplitLog)
	assert.Require(t, ok, "the log is a %T, which does not implement driver.SplitLog", log)
	var out, errs strings.Builder
	assert.NoError(t, terminal.CopySplit(&out, &errs, split))
	return out.String(), errs.String()
}

// wantPrinted checks what a server has printed.
func (e *env) wantPrinted(t *testing.T, spec driver.ServerSpec, stdout, stderr string) {
	t.Helper()
	gotOutput, gotErrors := e.readLog(t, spec)
	assert.Equal(t, "standard output", gotOutput, stdout)
	assert.Equal(t, "standard error", gotErrors, stderr)
}

func (e *env) waitForOutput(t *testing.T, spec driver.ServerSpec, text string) {
	t.Helper()
	assert.Eventually(t, "the server prints "+text, func(t testing.TB) error {
		stdout, _ := e.readLog(t, spec)
		assert.Contains(t, "the server's output", stdout, text)
		return nil
	})
}

// getPage returns a page from the web server at the first published port.
func (e *env) getPage(t *testing.T, s driver.Server, path string) (text string) {
	t.Helper()
	assert.Require(t, len(s.Ports) != 0, "no port is published: %+v", s)
	url := fmt.Sprintf("http://127.0.0.1:%d%s", s.Ports[0].HostPort, path)
	assert.Eventually(t, url, func(t testing.TB) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		assert.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, err := io.ReadAll(response.Body)
		text = string(body)
		assert.True(t, response.StatusCode == http.StatusOK, "the server answers %s", response.Status)
		return err
	})
	return text
}
