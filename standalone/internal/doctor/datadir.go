// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/standalone/internal/bytesize"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// dataDirFacts are facts about the data dir itself.
type dataDirFacts struct {
	path    string
	user    User
	missing bool
	parent  string // the nearest existing folder above a missing data dir
	mode    fs.FileMode
	foreign error  // why the folder is not a data dir
	access  error  // why Drover may not write to the data dir
	again   string // the command that runs the checks as root
	ignored error  // why the settings of the last drover up are not used
}

func gatherDataDir(_ context.Context, h *Host) dataDirFacts {
	f := dataDirFacts{path: string(h.Layout), user: h.User, again: h.commandLine("doctor"), ignored: errors.Join(h.PIDErr, h.StateErr)}
	info, err := os.Stat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		f.missing, f.parent = true, nearestFolder(f.path)
		f.access = h.User.tryAs(func() error { return checkWritable(f.parent) })
		return f
	}
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a folder", f.path)
	}
	if err != nil {
		f.foreign = err
		return f
	}
	f.mode = info.Mode().Perm()
	f.foreign = h.Layout.RefuseForeign()
	f.access = h.User.tryAs(func() error { return checkWritable(f.path) })
	return f
}

// nearestFolder returns the nearest folder above a path that exists and is visible.
func nearestFolder(path string) string {
	for folder := filepath.Dir(path); ; folder = filepath.Dir(folder) {
		if _, err := os.Stat(folder); err == nil || folder == filepath.Dir(folder) {
			return folder
		}
	}
}

func checkWritable(path string) error {
	if err := unix.Access(path, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "write to", Path: path, Err: err}
	}
	return nil
}

func judgeDataDir(f dataDirFacts) []findings.Finding {
	const others = 0o077
	isOther := errors.Is(f.access, errOtherUser)
	switch {
	case f.missing && f.access != nil && !isOther:
		return oneFinding(findings.Error("there is no %s, and user %s cannot make it: %v", f.path, f.user.Name, f.access).
			Means("drover up does not start.").FixedBy("name another folder with --data-dir, or run drover up as root"))
	case f.missing:
		return oneFinding(findings.Note("there is no %s yet", f.path).Means("The first drover up makes this folder. To use another folder, name it with --data-dir or DROVER_DATA_DIR."))
	case errors.Is(f.foreign, fs.ErrPermission):
		return oneFinding(findings.Note("%v", f.foreign).Means("The content of the folder could not be checked.").FixedByCommand("%s", f.again))
	case f.foreign != nil:
		return oneFinding(findings.Error("%v", f.foreign).Means("drover up does not start.").FixedBy("name another folder with --data-dir"))
	case errors.Is(f.access, syscall.EROFS):
		return oneFinding(findings.Error("%s is on a read-only file system", f.path).
			Means("Nothing can be stored. The kernel makes a file system read-only after errors of its disk.").
			FixedBy("read the kernel's log, repair the disk, and mount the file system again").FixedByCommand("sudo dmesg --level err"))
	case f.access != nil && !isOther:
		return oneFinding(findings.Error("user %s may not write to %s: %v", f.user.Name, f.path, f.access).Means("drover up does not start.").
			FixedByCommand("sudo chown %s %s && sudo chmod 700 %[2]s", printable.ShellWord(f.user.Name), printable.ShellWord(f.path)))
	case errors.Is(f.ignored, fs.ErrPermission):
		return oneFinding(findings.Note("%v", f.ignored).Means("Whether Drover runs is unknown, and the checks do not use its settings.").FixedByCommand("%s", f.again))
	case f.ignored != nil:
		return oneFinding(findings.Warning("%v", f.ignored).Means("The checks do not use the settings of the last drover up. The next start writes them again."))
	case f.mode&others != 0:
		return oneFinding(findings.Warning("other users can look into %s, whose mode is %#o", f.path, f.mode).
			Means("The data dir contains keys that give all rights. The next start makes it private.").FixedByCommand("sudo chmod 700 %s", printable.ShellWord(f.path)))
	}
	return oneFinding(findings.OK("%s, private to its owner", f.path))
}

// filesFacts are facts about the files in the data dir.
type filesFacts struct {
	path    string
	owner   User
	foreign []string // files of other users
	exposed []string // files with secrets that other users can read
	count   int
	cut     bool // not all files were checked
	err     error
	skipped bool // there is no data dir
}

// maxFiles is how many files are checked.
const maxFiles = 50_000

func gatherFiles(ctx context.Context, h *Host) filesFacts {
	f := filesFacts{path: string(h.Layout), owner: h.User}
	if found, err := h.Layout.Exists(); err != nil || !found {
		f.skipped = true
		return f
	}
	f.err = filepath.WalkDir(f.path, func(path string, entry fs.DirEntry, err error) error {
		if ctx.Err() != nil || f.count >= maxFiles {
			f.cut = true
			return fs.SkipAll
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		return f.addFile(h.Layout, path, entry)
	})
	return f
}

func (f *filesFacts) addFile(l datadir.Layout, path string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return nil //nolint:nilerr // removed meanwhile
	}
	f.count++
	if datadir.OwnerOf(info) != f.owner.ID {
		f.foreign = append(f.foreign, path)
	}
	isSecret := path == l.Kubeconfig() || filepath.Dir(path) == l.PKI() && filepath.Ext(path) != ".crt"
	if isSecret && info.Mode().Perm()&0o077 != 0 {
		f.exposed = append(f.exposed, path)
	}
	return nil
}

func judgeFiles(f filesFacts) []findings.Finding {
	if f.skipped {
		return nil
	}
	var all []findings.Finding
	if len(f.foreign) > 0 {
		all = append(all, findings.Warning("%s not user %s's: %s", countFiles(len(f.foreign), "is", "are"), f.owner.Name, shortenList(f.foreign)).
			Means("Drover may be unable to read or replace these files. A command that was run as another user has made them.").
			FixedByCommand("sudo chown --recursive --from %s", quoteAll([]string{ownerOf(f.foreign[0]), f.owner.Name, f.path})))
	}
	if len(f.exposed) > 0 {
		all = append(all, findings.Warning("%s secrets that others may read: %s", countFiles(len(f.exposed), "has", "have"), shortenList(f.exposed)).
			Means("The private folder above keeps other users out, but copies of these files would not.").
			FixedByCommand("sudo chmod 600 %s", quoteAll(f.exposed)))
	}
	switch {
	case errors.Is(f.err, fs.ErrPermission):
		all = append(all, findings.Note("%v", f.err).Means("The files could not all be checked."))
	case f.err != nil:
		all = append(all, findings.Error("%v", f.err).Means("The disk may be damaged.").FixedBy("read the kernel's log").FixedByCommand("sudo dmesg --level err"))
	case len(all) == 0 && f.cut:
		all = append(all, findings.OK("the first %d files are user %s's", f.count, f.owner.Name))
	case len(all) == 0:
		all = append(all, findings.OK("all %d files are user %s's", f.count, f.owner.Name))
	}
	return all
}

// quoteAll quotes words for a command line.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = printable.ShellWord(word)
	}
	return strings.Join(quoted, " ")
}

func countFiles(n int, singular, plural string) string {
	if n == 1 {
		return "1 file " + singular
	}
	return fmt.Sprintf("%d files %s", n, plural)
}

// shortenList returns the first paths, and the number of the others.
func shortenList(paths []string) string {
	const shown = 3
	if len(paths) <= shown {
		return strings.Join(paths, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(paths[:shown], ", "), len(paths)-shown)
}

// ownerOf returns the name of a file's owner, for chown.
func ownerOf(path string) string {
	var info syscall.Stat_t
	if err := syscall.Lstat(path, &info); err != nil {
		return "root"
	}
	return datadir.UserName(int(info.Uid))
}

// diskFacts are facts about a file system.
type diskFacts struct {
	path        string
	uses        []string
	free, total uint64 // bytes
	// freeInodes and totalInodes are both 0 if the file system does not count inodes.
	freeInodes, totalInodes uint64
	promised                int64 // how many bytes the disks of its machines may still grow by
	readOnly                bool
	err                     error
	prune                   string // the command that frees some space
}

// gatherDisks returns the facts about each file system that Drover uses.
func gatherDisks(_ context.Context, h *Host) []diskFacts {
	var all []diskFacts
	indices := map[uint64]int{} // in all, keyed by the device
	add := func(path, use string) *diskFacts {
		var info syscall.Stat_t
		if err := syscall.Stat(path, &info); err != nil { // missing or invisible
			path = nearestFolder(path)
			_ = syscall.Stat(path, &info)
		}
		i, known := indices[info.Dev]
		if !known {
			i = len(all)
			indices[info.Dev] = i
			all = append(all, readDisk(path))
			all[i].prune = h.commandLine("image prune")
		}
		if !slices.Contains(all[i].uses, use) {
			all[i].uses = append(all[i].uses, use)
		}
		return &all[i]
	}
	add(string(h.Layout), "data dir")
	machines := add(h.QEMU.Dir, "machines")
	if f, err := folder.Open(h.QEMU.Dir, h.Clock); err == nil {
		machines.promised, _ = f.PromisedDisk()
	}
	for _, dir := range h.QEMU.ImageDirs {
		add(dir, "images")
	}
	return all
}

func readDisk(path string) diskFacts {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return diskFacts{path: path, err: err}
	}
	size := uint64(st.Bsize) //nolint:gosec // positive
	return diskFacts{
		path: path, free: st.Bavail * size, total: st.Blocks * size, freeInodes: st.Ffree, totalInodes: st.Files,
		readOnly: st.Flags&unix.ST_RDONLY != 0,
	}
}

// FreeBytes returns the free bytes for Drover, and all bytes, of the file system of a path.
func FreeBytes(path string) (free, total uint64, err error) {
	d := readDisk(path)
	return d.free, d.total, d.err
}

// A disk should have free a part of 1/lowPart, or lowBytes, whichever is less.
const (
	lowPart  = 20
	lowBytes = 10 << 30
)

func judgeDisks(all []diskFacts) []findings.Finding {
	var found []findings.Finding
	for _, f := range all {
		found = append(found, f.judgeFreeSpace())
	}
	return found
}

func (f diskFacts) judgeFreeSpace() findings.Finding {
	text := fmt.Sprintf("%s free of %s at %s (%s)", bytesize.Format(f.free), bytesize.Format(f.total), f.path, strings.Join(f.uses, ", "))
	const full = "A full disk pauses guests, and keeps etcd from storing anything."
	switch {
	case f.err != nil:
		return findings.Warning("%s: %v", f.path, f.err).Means("The free space of its disk is unknown.")
	case f.readOnly:
		return findings.Error("the file system of %s is read-only", f.path).Means("Nothing can be stored there.").
			FixedBy("read the kernel's log, repair the disk, and mount the file system again").FixedByCommand("sudo dmesg --level err")
	case f.free < datadir.MinFree:
		return findings.Error("%s", text).Means("A start needs %s. %s", bytesize.Format(uint64(datadir.MinFree)), full).
			FixedBy("free some space, for example remove images that no machine uses").FixedByCommand("%s", f.prune)
	case f.totalInodes > 0 && f.freeInodes < f.totalInodes/100:
		return findings.Warning("%s, and inodes for %d more files", text, f.freeInodes).Means("Soon no new file can be created, as on a full disk.").FixedBy("remove files, or enlarge the file system")
	case f.free < min(f.total/lowPart, lowBytes):
		return findings.Warning("%s", text).Means(full).FixedBy("free some space, for example remove images that no machine uses").FixedByCommand("%s", f.prune)
	case f.promised > 0 && uint64(f.promised) > f.free:
		return findings.Warning("%s, and the disks of machines may grow by %s", text, bytesize.Format(uint64(f.promised))).
			Means("If guests write to all of their disks, the disk gets full. %s", full).FixedBy("watch the free space (drover_qemu_disk_available_bytes), or enlarge the disk")
	}
	return findings.OK("%s", text)
}
