// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package datadir is the folder in which one Drover installation keeps all it
// has: etcd's data, certificates, the kubeconfig, the port it serves on, logs.
//
// Start with Open, which makes the folder, refuses one that is somebody else's
// and locks it. Layout names its files, for readers that need no lock.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/atomicfile"
)

// Names in the folder. Purge removes these and no others, so that a wrong
// --data-dir never costs a person's files.
const (
	lockFile       = "lock"
	etcdDir        = "etcd"
	pkiDir         = "pki"
	runDir         = "run"
	logDir         = "logs"
	driversDir     = "drivers"
	kubeconfigFile = "kubeconfig"
	portFile       = "port"
	clusterIDFile  = "cluster-id"
	etcdFile       = "etcd-started"
	enginesFile    = "engines.json"
)

// Layout names the files of the data dir at this path.
type Layout string

// Etcd is where etcd keeps its data.
func (l Layout) Etcd() string { return filepath.Join(string(l), etcdDir) }

// PKI holds certificates and keys.
func (l Layout) PKI() string { return filepath.Join(string(l), pkiDir) }

// Run holds sockets and what else means nothing after a restart.
func (l Layout) Run() string { return filepath.Join(string(l), runDir) }

// Ready is there while everything runs, for scripts and tests that wait.
func (l Layout) Ready() string { return filepath.Join(l.Run(), "ready") }

// Logs holds log files.
func (l Layout) Logs() string { return filepath.Join(string(l), logDir) }

// LogFile is where all parts log to.
func (l Layout) LogFile() string { return filepath.Join(l.Logs(), "drover.log") }

// Drivers is where drivers that keep files have their folders.
func (l Layout) Drivers() string { return filepath.Join(string(l), driversDir) }

// Engines names the drivers that have run here.
func (l Layout) Engines() string { return filepath.Join(string(l), enginesFile) }

// Kubeconfig is for people: it works wherever it is copied to on this host.
func (l Layout) Kubeconfig() string { return filepath.Join(string(l), kubeconfigFile) }

// ClusterID is the UID of namespace kube-system, empty until it is known.
func (l Layout) ClusterID() (string, error) { return l.readWord(clusterIDFile) }

// Port is the one that was chosen before, 0 if none was.
func (l Layout) Port() (int, error) {
	word, err := l.readWord(portFile)
	if err != nil || word == "" {
		return 0, err
	}
	port, err := strconv.ParseUint(word, 10, 16)
	if err != nil || port == 0 {
		return 0, fmt.Errorf("%s should hold a port number and holds %q: give --port once to replace it",
			filepath.Join(string(l), portFile), word)
	}
	return int(port), nil
}

// Exists tells whether there is a Drover data dir at the path.
func (l Layout) Exists() (bool, error) {
	_, err := os.Stat(filepath.Join(string(l), lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (l Layout) readWord(name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(string(l), name)) //nolint:gosec // A file of our own data dir.
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// Dir is a data dir that this process holds.
type Dir struct {
	Layout
	lock *os.File
	run  *os.File
}

// InUseError tells that another process holds the data dir.
type InUseError struct {
	Path, PID string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("data dir %s is in use by drover (pid %s)", e.Path, e.PID)
}

// Open makes the data dir if it is missing, and holds it until Close.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{Layout: Layout(path)}
	if err := d.claim(); err != nil {
		return nil, errors.Join(describe(path, err), d.Close())
	}
	if err := d.prepare(); err != nil {
		return nil, errors.Join(describe(path, err), d.Close())
	}
	return d, nil
}

// OpenExisting holds a data dir that is there and changes nothing in it.
func OpenExisting(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{Layout: Layout(path)}
	found, err := d.Exists()
	if err == nil && !found {
		return nil, fmt.Errorf("%s is no Drover data dir", path)
	}
	if err == nil {
		err = d.hold()
	}
	if err != nil {
		return nil, errors.Join(describe(path, err), d.Close())
	}
	return d, nil
}

// claim takes the lock before anything in the folder is changed.
func (d *Dir) claim() error {
	if err := os.MkdirAll(string(d.Layout), 0o700); err != nil {
		return err
	}
	if err := d.refuseForeign(); err != nil {
		return err
	}
	return d.hold()
}

func (d *Dir) hold() error {
	lock, err := os.OpenFile(filepath.Join(string(d.Layout), lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	d.lock = lock
	if err := flock(lock); err != nil {
		return d.inUse(err)
	}
	return d.writePID()
}

// refuseForeign keeps Drover from settling in, and closing to others, a folder
// that has something else in it, such as a home directory.
func (d *Dir) refuseForeign() error {
	ours, err := d.Exists()
	if err != nil || ours {
		return err
	}
	entries, err := os.ReadDir(string(d.Layout))
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty and is no Drover data dir: name an empty or a new folder", d.Layout)
	}
	return nil
}

func (d *Dir) inUse(err error) error {
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock: %w", err)
	}
	pid, err := d.readWord(lockFile)
	if err != nil || pid == "" {
		pid = "unknown"
	}
	return &InUseError{Path: string(d.Layout), PID: pid}
}

func (d *Dir) writePID() error {
	if err := d.lock.Truncate(0); err != nil {
		return err
	}
	_, err := d.lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func (d *Dir) prepare() error {
	if err := os.Chmod(string(d.Layout), 0o700); err != nil { //nolint:gosec // A folder needs the x bit.
		return err
	}
	if err := atomicfile.Sweep(string(d.Layout)); err != nil {
		return err
	}
	if err := d.checkSpace(); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(d.Run()), d.dropUnbornEtcd()); err != nil {
		return err
	}
	for _, dir := range []string{d.Run(), d.Logs(), d.Etcd(), d.Drivers()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// dropUnbornEtcd removes what an etcd left that never came up. Its log may lack
// the entry that makes it a member of its own cluster; then it would wait for a
// leader for ever. Nothing in it was promised to anybody.
func (d *Dir) dropUnbornEtcd() error {
	for _, name := range []string{etcdFile, clusterIDFile} {
		if word, err := d.readWord(name); err != nil || word != "" {
			return err
		}
	}
	return os.RemoveAll(d.Etcd())
}

// SetEtcdStarted keeps that etcd has come up once: from now on its data stays.
func (d *Dir) SetEtcdStarted() error { return d.writeWord(etcdFile, "yes") }

// minFree is what a start needs: etcd sets 64 MB aside for its log and again
// as much for the next.
const minFree = 200 << 20

func (d *Dir) checkSpace() error {
	free, err := freeBytes(string(d.Layout))
	if err != nil {
		return fmt.Errorf("free space: %w", err)
	}
	if free < minFree {
		return fmt.Errorf("the disk of %s has %d MB free, and at least %d MB are needed", d.Layout, free>>20, minFree>>20)
	}
	return nil
}

// SetReady tells those who wait that everything runs.
func (d *Dir) SetReady() error {
	return atomicfile.Write(d.Ready(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
}

// ClearReady takes that back.
func (d *Dir) ClearReady() error {
	if err := os.Remove(d.Ready()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SetPort keeps the port for the next start.
func (d *Dir) SetPort(port int) error {
	return d.writeWord(portFile, strconv.Itoa(port))
}

// SetClusterID keeps the cluster's id, so that purge knows it without a server.
func (d *Dir) SetClusterID(id string) error {
	return d.writeWord(clusterIDFile, id)
}

func (d *Dir) writeWord(name, word string) error {
	return atomicfile.Update(filepath.Join(string(d.Layout), name), []byte(word+"\n"), 0o600)
}

// Remove removes what is Drover's in the data dir, and the folder itself if
// nothing else is in it. It returns what is.
func (d *Dir) Remove() ([]string, error) {
	names := []string{
		etcdDir, pkiDir, runDir, logDir, driversDir, kubeconfigFile, portFile, clusterIDFile, etcdFile, enginesFile,
		lockFile, // last: until then a purge that was cut short can be repeated
	}
	for _, name := range names {
		if err := os.RemoveAll(filepath.Join(string(d.Layout), name)); err != nil {
			return nil, d.Describe(err)
		}
	}
	return d.removeIfEmpty()
}

func (d *Dir) removeIfEmpty() ([]string, error) {
	entries, err := os.ReadDir(string(d.Layout))
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, os.Remove(string(d.Layout))
	}
	left := make([]string, len(entries))
	for i, e := range entries {
		left[i] = e.Name()
	}
	return left, nil
}

// Close lets go of the data dir.
func (d *Dir) Close() error {
	var errs []error
	for _, f := range []*os.File{d.run, d.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}

// describe turns what the system says into a line that says what to do.
func describe(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("the disk of data dir %s is full: %w", path, err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("data dir %s is on a read-only file system: %w", path, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission for data dir %s (choose another with --data-dir): %w", path, err)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		return fmt.Errorf("data dir %s is not a folder: %w", path, err)
	}
	return err
}

// Describe does that for later errors.
func (d *Dir) Describe(err error) error { return describe(string(d.Layout), err) }

// Default is where the data dir is when nobody says otherwise.
func Default(getenv func(string) string, uid int) string {
	switch {
	case getenv("DROVER_DATA_DIR") != "":
		return getenv("DROVER_DATA_DIR")
	case uid == 0:
		return "/var/lib/drover"
	case filepath.IsAbs(getenv("XDG_DATA_HOME")):
		return filepath.Join(getenv("XDG_DATA_HOME"), "drover")
	}
	return filepath.Join(getenv("HOME"), ".local", "share", "drover")
}
