// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package datadir is the folder with everything that belongs to one Drover installation:
// etcd's data, certificates, the kubeconfig, the port it serves on, logs.
//
// Start with Open, which creates the folder, refuses one that has other content, and
// locks it. Layout names its files, for readers that need no lock. Before root reads anything
// in another user's data dir, BecomeOwner (owner.go) makes it that user.
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

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/internal/login"
)

// Names in the folder. Purge removes these and no others, so that a wrong
// --data-dir never deletes a person's files.
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
	// oldFormatFile has oldFormat in a data dir of a version before data-version.
	oldFormatFile = "format"
	oldFormat     = "1"
)

// Layout is the path of a data dir; its methods name the files there.
type Layout string

// Etcd is the folder of etcd's data.
func (l Layout) Etcd() string { return filepath.Join(string(l), etcdDir) }

// PKI holds certificates and keys.
func (l Layout) PKI() string { return filepath.Join(string(l), pkiDir) }

// Run holds sockets and other files that mean nothing after a restart.
func (l Layout) Run() string { return filepath.Join(string(l), runDir) }

// Ready exists while everything runs, for scripts and tests that wait.
func (l Layout) Ready() string { return filepath.Join(l.Run(), "ready") }

// RunState is the file in which the process that runs, or ran last, describes itself: see package runstate.
func (l Layout) RunState() string { return filepath.Join(l.Run(), "state.json") }

// Logs holds log files.
func (l Layout) Logs() string { return filepath.Join(string(l), logDir) }

// LogFile is the file that all parts log to.
func (l Layout) LogFile() string { return filepath.Join(l.Logs(), "drover.log") }

// Drivers is the folder for the folders of drivers that keep files.
func (l Layout) Drivers() string { return filepath.Join(string(l), driversDir) }

// Engines is the file that names the drivers that have run here.
func (l Layout) Engines() string { return filepath.Join(string(l), enginesFile) }

// Kubeconfig is for people: a copy of it works anywhere on this host.
func (l Layout) Kubeconfig() string { return filepath.Join(string(l), kubeconfigFile) }

// ClusterID is the UID of namespace kube-system, empty until it is known.
func (l Layout) ClusterID() (string, error) { return l.readWord(clusterIDFile) }

// Port returns the port that was chosen before, or 0.
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

// IsEmpty reports whether a path is an empty folder, such as purge leaves where it may not
// remove the folder itself.
func IsEmpty(l Layout) (bool, error) {
	entries, err := os.ReadDir(string(l))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && len(entries) == 0, err
}

// Exists reports whether there is a Drover data dir at the path. It fails for one that this version
// cannot read.
func (l Layout) Exists() (bool, error) {
	_, err := os.Lstat(filepath.Join(string(l), lockFile))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, errors.Join(err, l.checkVersion())
}

// checkVersion refuses a data dir if this version can read neither it nor the folders of drivers in it.
func (l Layout) checkVersion() error {
	folders, err := filepath.Glob(filepath.Join(l.Drivers(), "*"))
	for _, folder := range append(folders, string(l)) {
		err = errors.Join(err, format.CheckFolder(folder))
	}
	if err != nil {
		return err
	}
	if has, err := format.HasVersion(string(l)); has || err != nil {
		return err
	}
	word, err := l.readWord(oldFormatFile)
	if err != nil || word == oldFormat {
		return err
	}
	begun, err := l.isBegun()
	if err != nil || word == "" && !begun {
		return err
	}
	return fmt.Errorf("data dir %s lacks %s, and was begun by a version of Drover before 0.1.0: purge it with that version (drover purge --data), or name another by --data-dir", l, format.DataVersionFile)
}

// markVersion records which versions can read the data dir, before anything is written that some cannot.
func markVersion(l Layout) error {
	if err := format.MarkFolder(string(l), format.NeededVersion()); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(string(l), oldFormatFile)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// isBegun reports whether etcd has ever come up.
func (l Layout) isBegun() (bool, error) {
	for _, name := range []string{etcdFile, clusterIDFile} {
		if word, err := l.readWord(name); err != nil || word != "" {
			return true, err
		}
	}
	return false, nil
}

func (l Layout) readWord(name string) (string, error) {
	data, _, err := Read(filepath.Join(string(l), name))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(data)), err
}

// Dir is a data dir that this process holds.
type Dir struct {
	Layout
	// root is the folder that was opened, whatever its path leads to by now.
	root *os.Root
	lock *os.File
	run  *os.File
}

// InUseError reports that another process holds the data dir.
type InUseError struct {
	Path, PID string
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("data dir %s is in use by drover (pid %s)", e.Path, e.PID)
}

// Open creates the data dir if it is missing, and holds it until Close.
func Open(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{Layout: Layout(path)}
	if err := d.claimFolder(); err != nil {
		return nil, errors.Join(explainError(path, err), d.Close())
	}
	if err := prepareFolder(d.root, d.Layout); err != nil {
		return nil, errors.Join(explainError(path, err), d.Close())
	}
	return d, nil
}

// OpenExisting holds an existing data dir and changes nothing in it.
func OpenExisting(path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	d := &Dir{Layout: Layout(path)}
	found, err := d.Exists()
	if err == nil && !found {
		return nil, fmt.Errorf("%s is not a Drover data dir: name the one of drover up by --data-dir or DROVER_DATA_DIR", path)
	}
	if err == nil {
		d.root, err = openFolder(d.Layout)
	}
	if err == nil {
		d.lock, err = acquireLock(d.root, d.Layout)
	}
	if err != nil {
		return nil, errors.Join(explainError(path, err), d.Close())
	}
	return d, nil
}

// claimFolder acquires the lock before anything in the folder is changed.
func (d *Dir) claimFolder() (err error) {
	if err := checkPath(d.Layout); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(string(d.Layout), 0o700); err != nil {
		return err
	}
	if d.root, err = openFolder(d.Layout); err != nil {
		return err
	}
	if err := d.RefuseForeign(); err != nil {
		return err
	}
	d.lock, err = acquireLock(d.root, d.Layout)
	return err
}

// checkPath fails if root would act where another user decides.
func checkPath(l Layout) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if _, _, err := Owner(string(l)); err != nil {
		return fmt.Errorf("root uses no data dir that another user could replace: %w", err)
	}
	return nil
}

// openFolder opens the folder, which has to belong to the caller: its owner could read the keys
// in it, and redirect files that are written there. The caller closes what it returns, also with an error.
func openFolder(l Layout) (root *os.Root, err error) {
	if err := checkPath(l); err != nil {
		return nil, err
	}
	if root, err = os.OpenRoot(string(l)); err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err != nil {
		return root, err
	}
	if uid := OwnerOf(info); uid != os.Geteuid() {
		return root, fmt.Errorf(
			"%s belongs to user %s, and this is user %s: run it as that user (sudo --user %s), or name another data dir with --data-dir",
			l, UserName(uid), UserName(os.Geteuid()), SudoUser(uid))
	}
	return root, nil
}

// acquireLock locks the folder. The caller closes what it returns, also with an error.
func acquireLock(root *os.Root, l Layout) (*os.File, error) {
	info, err := root.Lstat(lockFile)
	if err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file: remove it", filepath.Join(string(l), lockFile))
	}
	lock, err := root.OpenFile(lockFile, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := lockExclusively(lock); err != nil {
		return lock, lockError(l, err)
	}
	return lock, writePID(lock)
}

// RefuseForeign prevents Drover from using, and closing to others, a folder that has
// other content, such as a home directory.
func (l Layout) RefuseForeign() error {
	ours, err := l.Exists()
	if err != nil || ours {
		return err
	}
	entries, err := os.ReadDir(string(l))
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s is not empty and not a Drover data dir: name an empty or a new folder", l)
	}
	return nil
}

func lockError(l Layout, err error) error {
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return fmt.Errorf("lock: %w", err)
	}
	pid, err := l.readWord(lockFile)
	if err != nil || pid == "" {
		pid = "unknown"
	}
	return &InUseError{Path: string(l), PID: pid}
}

// Holder returns the process ID of the Drover that holds the data dir, or 0. It reads the
// kernel's list of locks: to try the lock could keep another process from getting it.
func (l Layout) Holder() (int, error) {
	word, err := l.readWord(lockFile)
	if err != nil || word == "" {
		return 0, err
	}
	pid, err := strconv.Atoi(word)
	if err != nil {
		return 0, fmt.Errorf("%s should hold a process ID and holds %q", filepath.Join(string(l), lockFile), word)
	}
	var info syscall.Stat_t
	if err := syscall.Lstat(filepath.Join(string(l), lockFile), &info); err != nil {
		return 0, err
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0, err
	}
	return findLockOwner(string(locks), pid, &info), nil
}

// findLockOwner returns the process that has locked a file, by /proc/locks, or 0. Either the
// process or the device identifies the file besides its inode: some file systems have
// another device there, and in another PID namespace the process has another ID.
func findLockOwner(locks string, pid int, file *syscall.Stat_t) int {
	const kind, owner, place = 1, 4, 5
	inode := ":" + strconv.FormatUint(file.Ino, 10)
	device := fmt.Sprintf("%02x:%02x", unix.Major(file.Dev), unix.Minor(file.Dev))
	for line := range strings.Lines(locks) {
		fields := strings.Fields(line)
		if len(fields) <= place || fields[kind] != "FLOCK" || !strings.HasSuffix(fields[place], inode) {
			continue
		}
		has, err := strconv.Atoi(fields[owner])
		if err == nil && has > 0 && (has == pid || fields[place] == device+inode) {
			return has
		}
	}
	return 0
}

func writePID(lock *os.File) error {
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err := lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func prepareFolder(root *os.Root, l Layout) error {
	if err := root.Chmod(".", 0o700); err != nil {
		return err
	}
	if err := atomicfile.Sweep(string(l)); err != nil {
		return err
	}
	if err := checkSpace(string(l)); err != nil {
		return err
	}
	if err := errors.Join(markVersion(l), os.RemoveAll(l.Run()), removeUninitializedEtcd(l)); err != nil {
		return err
	}
	for _, dir := range []string{l.Run(), l.Logs(), l.Etcd(), l.Drivers()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// removeUninitializedEtcd removes the data of an etcd that never came up. Its log may lack
// the entry that makes it a member of its cluster; then it would wait for a leader
// for ever. No write to it was ever acknowledged.
func removeUninitializedEtcd(l Layout) error {
	if begun, err := l.isBegun(); err != nil || begun {
		return err
	}
	return os.RemoveAll(l.Etcd())
}

// SetEtcdStarted records that etcd has come up once: from now on its data is never removed.
func (d *Dir) SetEtcdStarted() error { return d.writeWord(etcdFile, "yes") }

// MinFree is the free space that a start needs: etcd reserves 64 MB for its log and
// the same again for the next.
const MinFree = 200 << 20

func checkSpace(path string) error {
	free, err := freeBytes(path)
	if err != nil {
		return fmt.Errorf("free space: %w", err)
	}
	if free < MinFree {
		return fmt.Errorf("the disk of %s has %d MB free, and at least %d MB are needed", path, free>>20, MinFree>>20)
	}
	return nil
}

// SetReady signals to waiting programs that everything runs.
func (d *Dir) SetReady() error {
	return atomicfile.Write(d.Ready(), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600)
}

// ClearReady removes what SetReady wrote.
func (d *Dir) ClearReady() error {
	if err := os.Remove(d.Ready()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// SetRunState stores what the process says of itself.
func (d *Dir) SetRunState(content []byte) error {
	staging := atomicfile.Folder{Path: d.Run(), Prefix: ".state-", Volatile: true}
	return staging.Replace(d.RunState(), content, 0o600, nil)
}

// SetPort stores the port for the next start.
func (d *Dir) SetPort(port int) error {
	return d.writeWord(portFile, strconv.Itoa(port))
}

// SetClusterID stores the cluster's id, so that purge knows it while no API runs.
func (d *Dir) SetClusterID(id string) error {
	return d.writeWord(clusterIDFile, id)
}

func (l Layout) writeWord(name, word string) error {
	return atomicfile.Update(filepath.Join(string(l), name), []byte(word+"\n"), 0o600)
}

// Remove removes Drover's files from the data dir, and the folder itself if nothing else
// is in it and this user may remove it. It returns the names of the files that are left.
func (d *Dir) Remove() ([]string, error) {
	names := []string{
		etcdDir, pkiDir, runDir, logDir, driversDir, kubeconfigFile, portFile, clusterIDFile, etcdFile, enginesFile, oldFormatFile, format.DataVersionFile,
		lockFile, // last: until then a purge that was cut short can be repeated
	}
	for _, name := range names {
		if err := d.root.RemoveAll(name); err != nil {
			return nil, d.ExplainError(fmt.Errorf("%s: %w", d.Layout, err))
		}
	}
	return removeIfEmpty(d.root, string(d.Layout))
}

func removeIfEmpty(root *os.Root, path string) ([]string, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		// The folder above may belong to another user, as for a service.
		if err := os.Remove(path); !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		return nil, nil
	}
	left := make([]string, len(entries))
	for i, e := range entries {
		left[i] = e.Name()
	}
	return left, nil
}

// Close releases the data dir.
func (d *Dir) Close() error {
	var errs []error
	if d.lock != nil {
		unlock(d.lock)
	}
	for _, f := range []*os.File{d.run, d.lock} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	if d.root != nil {
		errs = append(errs, d.root.Close())
	}
	return errors.Join(errs...)
}

// explainError turns a system error into a line that says what to do.
func explainError(path string, err error) error {
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

// ExplainError is explainError for errors after Open.
func (d *Dir) ExplainError(err error) error { return explainError(string(d.Layout), err) }

// Default returns the data dir that is used without a flag.
func Default(getenv func(string) string, uid int) string { return login.DataDir(getenv, uid) }
