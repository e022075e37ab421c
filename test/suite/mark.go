// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/leftovers"
	"cloudnative.tw/drover/test/tier"
)

// runEnv is the variable with the name of the run, for all processes that it starts. Test images have
// the name in the label runLabel, which containers inherit.
const (
	runEnv   = "DROVER_TEST_RUN"
	runLabel = "cloudnative.tw/test-run"
)

// mark identifies the processes of a run of the tests on the host: by a variable in their
// environment, a folder for temporary files, and a label of images. So two runs on one host do not
// affect each other.
type mark struct {
	name string
	// dir is the folder of the run's files, and temp the TMPDIR of the tests.
	dir, temp string
}

func newMark() (*mark, error) {
	dir, err := os.MkdirTemp("", "drover-suite-")
	if err != nil {
		return nil, fmt.Errorf("a folder for the tests: %w", err)
	}
	temp, err := makeTemp()
	if err != nil {
		return nil, fmt.Errorf("a folder for the files of the tests: %w", err)
	}
	return &mark{name: filepath.Base(temp), dir: dir, temp: temp}, os.Chmod(dir, 0o711) // #nosec -- others run its programs
}

// makeTemp makes a folder with a short path, since the paths of sockets are limited to 107 bytes.
func makeTemp() (dir string, err error) {
	for range 100 {
		dir = filepath.Join(os.TempDir(), "dt"+strconv.FormatInt(rand.Int64N(36*36*36*36), 36)) // #nosec -- a name
		if err = os.Mkdir(dir, 0o700); err == nil || !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err == nil {
		err = os.Chmod(dir, 0o777|os.ModeSticky) // #nosec -- as /tmp is
	}
	return dir, err
}

// environ returns the environment of the run's tests.
func (m *mark) environ(isFull bool) []string {
	env := append(os.Environ(), runEnv+"="+m.name, "TMPDIR="+m.temp)
	if root, err := os.Getwd(); err == nil && os.Getenv("DROVER_BIN") == "" {
		env = append(env, "DROVER_BIN="+filepath.Join(root, "bin", "drover")) // of make build
	}
	if isFull {
		env = append(env, tier.Env+"=full")
	}
	return env
}

// endTimeout is how long killed processes may take to be gone.
const endTimeout = 10 * time.Second

// sweep ends and removes everything that the run has left, and returns a description. If the run was
// interrupted, sweep does not wait until processes end by themselves.
func (m *mark) sweep(ctx context.Context) (left []string) {
	for begin := time.Now(); ctx.Err() == nil && time.Since(begin) < endTimeout; time.Sleep(endTimeout / 20) {
		if left = m.findMarked(); len(left) == 0 {
			break
		}
	}
	m.end()
	if err := m.remove(); err != nil {
		left = append(left, err.Error())
	}
	return left
}

func (m *mark) remove() error { return errors.Join(os.RemoveAll(m.temp), os.RemoveAll(m.dir)) }

func (m *mark) findMarked() []string {
	var left []string
	for _, pid := range m.processes() {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		left = append(left, fmt.Sprintf("process %d %.200s", pid, bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
	}
	for _, path := range m.mounts() {
		left = append(left, "mount "+path)
	}
	for _, id := range m.containers() {
		left = append(left, "container "+id)
	}
	entries, err := os.ReadDir(m.temp)
	for _, e := range entries {
		left = append(left, "folder "+filepath.Join(m.temp, e.Name()))
	}
	if err != nil {
		left = append(left, err.Error())
	}
	return left
}

// end kills the run's processes, and removes its mounts, containers and images.
func (m *mark) end() {
	for _, pid := range m.processes() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	for _, path := range slices.Backward(m.mounts()) {
		_ = syscall.Unmount(path, syscall.MNT_DETACH)
	}
	if all := m.containers(); len(all) > 0 {
		_, _ = askDocker(append([]string{"rm", "--force", "--volumes"}, all...)...)
	}
	if all, _ := askDocker("image", "ls", "--quiet", "--filter", "label="+runLabel+"="+m.name); all != "" {
		_, _ = askDocker(append([]string{"image", "rm", "--force"}, strings.Fields(all)...)...)
	}
}

// processes returns the PIDs of the run's processes.
func (m *mark) processes() []int { return leftovers.Processes(runEnv+"="+m.name, m.temp) }

// mounts returns the mount points below the run's folder.
func (m *mark) mounts() (paths []string) {
	table, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 1 && strings.HasPrefix(fields[1], m.temp+"/") {
			paths = append(paths, fields[1])
		}
	}
	return paths
}

func (m *mark) containers() []string {
	all, _ := askDocker("ps", "--all", "--quiet", "--filter", "label="+runLabel+"="+m.name)
	return strings.Fields(all)
}

const dockerTimeout = 30 * time.Second

// askDocker runs the docker command. Without an engine it returns nothing, as there are no containers.
func askDocker(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dockerTimeout)
	defer cancel()
	return output(exec.CommandContext(ctx, "docker", args...))
}
