// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package containers has the cases that every driver of container images passes, with the same
// images and specs: a container and a machine of one image do the same, but for what
// docs/drivers.md lists.
//
// Start with Run. cases.go has the images and specs; the image itself is framework.BusyBoxImage.
package containers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// Harness describes a driver to the cases.
type Harness struct {
	// Open returns a driver that takes images by tag from a registry without TLS on this host, and
	// removes at the end of the test what the engine has of them.
	Open func(t *testing.T, registry string) driver.Driver
	// IsMachine is set if a server is a machine and not a container: it has a disk of the size that
	// the spec says, its command is not process 1, and the guest notices missing parts of the image.
	// It takes seconds to boot, so the gate has some of the cases.
	IsMachine bool
}

// Run runs all cases.
func Run(t *testing.T, h Harness) {
	t.Helper()
	e := &env{Harness: h, registry: framework.NewRegistry(t, nil)}
	e.driver = h.Open(t, e.registry)
	e.add(t, "Server", true, e.testServer)
	e.add(t, "FirstProcess", false, e.testFirstProcess)
	e.add(t, "NoCommand", true, e.testNoCommand)
	for name, j := range jobs {
		e.add(t, "Job/"+name, j.inGate, func(t *testing.T) { e.testJob(t, j) })
	}
	for name, f := range faults {
		e.add(t, "Fault/"+name, false, func(t *testing.T) { e.testFault(t, f) })
	}
}

// env is the environment of the cases.
type env struct {
	Harness
	registry string
	driver   driver.Driver
}

func (e *env) add(t *testing.T, name string, inGate bool, run func(t *testing.T)) {
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		if e.IsMachine && !inGate {
			tier.Full(t, "each machine takes seconds to boot; the gate has a server and a job with all fields of a command")
		}
		run(t)
	})
}

// newSpec returns a server of an image that the registry has from now on. It is removed at the end of
// the case.
func (e *env) newSpec(t *testing.T, image v1.Config) driver.ServerSpec {
	t.Helper()
	uid := uuid.NewUUID()
	source := e.registry + "/busybox:" + string(uid)
	framework.PushImage(t, source, framework.BusyBoxImage(t, image))
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

// start repeats Ensure until a run other than old has begun, which may have ended since.
func (e *env) start(t *testing.T, spec driver.ServerSpec, old string) (s driver.Server) {
	t.Helper()
	assert.Eventually(t, "Ensure begins a run", func(testing.TB) error {
		var err error
		s, err = e.driver.Ensure(t.Context(), spec)
		assert.Require(t, err == nil || errors.Is(err, driver.ErrRetry), "Ensure: %v", err)
		if s.Run == "" || s.Run == old {
			return fmt.Errorf("it is %+v, %w", s, errors.Join(err, driver.ErrRetry))
		}
		return err
	})
	assert.True(t, len(s.Pending) == 0, "at its start Pending is %v", s.Pending)
	return s
}

// wantEnd waits until a run has ended, and checks how.
func (e *env) wantEnd(t *testing.T, spec driver.ServerSpec, code int, message string) {
	t.Helper()
	var exit *driver.Exit
	assert.Eventually(t, "the server ends", func(t testing.TB) error {
		all, err := e.driver.List(t.Context(), spec.UID)
		if err != nil || len(all) != 1 || all[0].State != driver.StateStopped || all[0].Exit == nil {
			return fmt.Errorf("it is %+v, %w", all, errors.Join(err, driver.ErrRetry))
		}
		exit = all[0].Exit
		return nil
	})
	reason := "Error"
	if code == 0 {
		reason = "Completed"
	}
	assert.True(t, exit.Code == code && exit.Reason == reason && exit.Message == message,
		"it ended with %+v, want code %d, reason %s and the message %q", exit, code, reason, message)
}

// log returns what a server has printed.
func (e *env) log(t testing.TB, spec driver.ServerSpec) string {
	t.Helper()
	reader, ok := driver.As[driver.LogReader](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.LogReader")
	log, err := reader.Logs(t.Context(), spec.UID, driver.LogOptions{})
	assert.NoError(t, err)
	defer func() { _ = log.Close() }()
	text, err := io.ReadAll(log)
	assert.NoError(t, err)
	return string(text)
}

// prints waits until a server has printed a text.
func (e *env) prints(t *testing.T, spec driver.ServerSpec, text string) {
	t.Helper()
	assert.Eventually(t, "it prints "+text, func(t testing.TB) error {
		assert.Contains(t, "it has printed", e.log(t, spec), text)
		return nil
	})
}

// get returns what a server answers at the first of its published ports.
func (e *env) get(t *testing.T, s driver.Server, path string) (text string) {
	t.Helper()
	assert.Require(t, len(s.Ports) != 0, "no port is published: %+v", s)
	url := fmt.Sprintf("http://127.0.0.1:%d%s", s.Ports[0].HostPort, path)
	assert.Eventually(t, url, func(t testing.TB) error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		assert.NoError(t, err)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = answer.Body.Close() }()
		body, err := io.ReadAll(answer.Body)
		text = string(body)
		assert.True(t, answer.StatusCode == http.StatusOK, "it answers %s", answer.Status)
		return err
	})
	return text
}
