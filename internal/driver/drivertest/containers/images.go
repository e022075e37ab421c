// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// imageCase is an image of Debian's packages, with commands to run in a server of it, and the server's end.
type imageCase struct {
	root   string            // the lower layer: of hack/debian-root.sh, or rootStatic
	files  map[string]string // above it: executable files
	links  map[string]string
	config v1.Config
	// setSpec may be nil.
	setSpec func(*driver.ServerSpec)
	init    driver.Init
	// ready is a command that succeeds once the server is ready.
	ready    string
	commands []imageCommand
	// kept are commands for a server that was stopped and started again.
	kept []imageCommand
	// page is the page at the first published port, "" for none.
	page string
	end  imageEnd
	// machine is the end of a machine, if it differs from the end of a container.
	machine *imageEnd
	// machineOnly is set if a container ends before it is ready.
	machineOnly bool
	// reboot is a command that boots a machine again within its run. A container cannot do that.
	reboot string
}

// imageCommand is a command of a shell, all that it prints and its exit code.
type imageCommand struct {
	user, script, prints string
	code                 int
}

// imageEnd is how a server ends.
type imageEnd struct {
	by     string // a command that ends it; without one it is stopped
	code   int
	prints string // what its output has then
	forced bool   // it does not end at the stop signal, and is killed
}

// rootStatic is a layer with BusyBox, which is a static program, and nothing else.
const rootStatic = "static"

// RunImages runs the cases with images of real programs.
func RunImages(t *testing.T, h Harness) {
	t.Helper()
	tier.Full(t, "the images are large, and some boot for a minute; the gate boots BusyBox, and an init in package boot")
	newEnv(t, h).runImages(t, images)
}

// RunWorkloads runs machines that load modules of the kernel, or whose users want a machine: Docker, a node of a cluster,
// a private network, a browser.
func RunWorkloads(t *testing.T, h Harness) {
	t.Helper()
	tier.Full(t, "the images are large, and each boots for a minute; the gate loads a module")
	e := newEnv(t, h)
	e.runImages(t, workloads)
	t.Run("WireGuard", e.testWireGuard)
}

func (e *env) runImages(t *testing.T, cases map[string]imageCase) {
	t.Helper()
	roots := map[string]v1.Image{}
	for name, c := range cases {
		if roots[c.root] == nil {
			roots[c.root] = newRoot(t, c.root)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e.testImage(t, c, roots[c.root])
		})
	}
}

// newRoot returns an image with only the lower layer.
func newRoot(t *testing.T, name string) v1.Image {
	t.Helper()
	layer := framework.TarOf(t, "bin/busybox", busyBox(t))
	if name != rootStatic {
		layer = debianRoot(t, name)
	}
	image, err := framework.LayersImage(v1.Config{}, layer)
	assert.NoError(t, err)
	return image
}

func busyBox(t *testing.T) []byte {
	t.Helper()
	program, err := framework.BusyBox(t.Context())
	assert.NoError(t, err)
	return program
}

func debianRoot(t *testing.T, name string) []byte {
	t.Helper()
	repository, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	path, _ := framework.MustRunCommand(t, framework.BuildTimeout, nil, filepath.Join(repository, "hack", "debian-root.sh"), name)
	layer, err := os.ReadFile(strings.TrimSpace(path))
	assert.NoError(t, err)
	return layer
}

// imageOn returns the case's image above a root.
func (c imageCase) imageOn(t *testing.T, root v1.Image) v1.Image {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var errs []error
	for path, content := range c.files {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Size: int64(len(content))}), assert.ErrorOf(io.WriteString(w, content)))
	}
	for path, target := range c.links {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: path, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}))
	}
	assert.NoError(t, errors.Join(append(errs, w.Close())...))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	assert.NoError(t, err)
	image, err := mutate.AppendLayers(root, layer)
	assert.NoError(t, err)
	image, err = mutate.Config(image, c.config)
	assert.NoError(t, err)
	return image
}

func (e *env) testImage(t *testing.T, c imageCase, root v1.Image) {
	image := c.imageOn(t, root)
	spec := e.specOfImage(t, image)
	spec.MemoryBytes, spec.Init, spec.GracePeriod = 512<<20, c.init, time.Hour
	if c.setSpec != nil {
		c.setSpec(&spec)
	}
	spec.Ephemeral = e.IsMachine && len(spec.Volumes) > 0 // other machines keep their first image
	s := e.startRun(t, spec, "")
	end := c.end
	if e.IsMachine && c.machine != nil {
		end = *c.machine
	}
	if e.IsMachine || !c.machineOnly {
		e.waitForCommand(t, spec, c.ready)
		e.checkCommands(t, spec, c.commands)
		e.testReboot(t, spec, s.Run, c)
		if c.page != "" {
			assert.Equal(t, "the page", e.getPage(t, s, "/"), c.page)
		}
		e.testKept(t, spec, s, c, image)
		e.endImage(t, spec, end)
	}
	e.wantExit(t, spec, end.code, "")
	stdout, stderr := e.readLog(t, spec)
	assert.Contains(t, "the server's output", stdout+stderr, end.prints)
}

// execShell runs a command of a shell, and returns what it prints and its exit code.
func (e *env) execShell(t testing.TB, spec driver.ServerSpec, c imageCommand) (output string, code int, err error) {
	t.Helper()
	executor, ok := driver.As[driver.Executor](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.Executor")
	var out bytes.Buffer
	code, err = executor.Exec(t.Context(), spec.UID, terminal.Command{User: c.user, Args: []string{"sh", "-c", c.script}, Stdout: &out, Stderr: &out})
	return out.String(), code, err
}

// waitForCommand waits until a command succeeds.
func (e *env) waitForCommand(t *testing.T, spec driver.ServerSpec, script string) {
	t.Helper()
	assert.Eventually(t, script+" succeeds", func(t testing.TB) error {
		out, code, err := e.execShell(t, spec, imageCommand{script: script})
		assert.True(t, code == 0, "it ends with %d: %s", code, out)
		return err
	})
}

func (e *env) checkCommands(t *testing.T, spec driver.ServerSpec, commands []imageCommand) {
	t.Helper()
	for _, c := range commands {
		out, code, err := e.execShell(t, spec, c)
		assert.True(t, err == nil && code == c.code && out == c.prints, "%q ends with %d, %v, and prints %q; want %d and %q", c.script, code, err, out, c.code, c.prints)
	}
}

// testReboot boots a machine again from inside, and checks that its run goes on.
func (e *env) testReboot(t *testing.T, spec driver.ServerSpec, run string, c imageCase) {
	t.Helper()
	if !e.IsMachine || c.reboot == "" {
		return
	}
	readBoot := imageCommand{script: "cat /proc/sys/kernel/random/boot_id"}
	first, _, err := e.execShell(t, spec, readBoot)
	assert.NoError(t, err)
	_, _, _ = e.execShell(t, spec, imageCommand{script: c.reboot}) // it may end with the boot
	assert.Eventually(t, "the machine boots again", func(t testing.TB) error {
		now, code, err := e.execShell(t, spec, readBoot)
		assert.True(t, code == 0 && now != first, "the boot is %q", now)
		return err
	})
	e.waitForCommand(t, spec, c.ready)
	all, err := e.driver.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, len(all) == 1 && all[0].Run == run && all[0].State == driver.StateRunning, "after a reboot the list is %+v, want the run %s", all, run)
}

// testKept stops a server and starts it again, three times if it has volumes, and the third time with another image.
func (e *env) testKept(t *testing.T, spec driver.ServerSpec, s driver.Server, c imageCase, image v1.Image) {
	t.Helper()
	if len(c.kept) == 0 {
		return
	}
	other := spec.Image.Source + "-other"
	images := []string{spec.Image.Source}
	if len(spec.Volumes) > 0 {
		c.files = map[string]string{"another image": ""}
		framework.PushImage(t, other, c.imageOn(t, image))
		images = append(images, spec.Image.Source, other)
	}
	for _, source := range images {
		e.requestStop(t, spec)
		e.wantExit(t, spec, c.end.code, "")
		spec.Image.Source = source
		s = e.startRun(t, spec, s.Run)
		e.waitForCommand(t, spec, c.ready)
		e.checkCommands(t, spec, c.kept)
		if c.page != "" {
			assert.Equal(t, "the page after a restart", e.getPage(t, s, "/"), c.page)
		}
	}
}

// endImage ends the server.
func (e *env) endImage(t *testing.T, spec driver.ServerSpec, end imageEnd) {
	t.Helper()
	if end.by != "" {
		_, _, _ = e.execShell(t, spec, imageCommand{script: end.by}) // it may end with the server
		return
	}
	e.requestStop(t, spec)
	if end.forced {
		e.waitForOutput(t, spec, end.prints)
		spec.Power, spec.StopBy = driver.PowerOff, time.Unix(1, 0)
		assert.NoError(t, assert.ErrorOf(e.driver.Ensure(t.Context(), spec)))
	}
}
