// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// markPrefix is the prefix of marks, which are written to os.DevNull so that strace records them.
const markPrefix = "powercut mark: "

// Mark marks a place in a workload.
func Mark(name string) { _ = os.WriteFile(os.DevNull, []byte(markPrefix+name), 0) }

// Record runs a program and returns its changes below a folder. The folder must be empty, and its
// path must not have symbolic links. The changes of other programs that it starts, such as QEMU,
// are not recorded.
func Record(ctx context.Context, folder, program string, args, env []string) (*Recording, error) {
	trace, err := os.CreateTemp("", "powercut-*.strace")
	if err != nil {
		return nil, err
	}
	defer func() { _ = errors.Join(trace.Close(), os.Remove(trace.Name())) }()
	cmd := exec.CommandContext(ctx, "strace", append([]string{
		"--follow-forks", "--detach-on=execve", "--decode-fds=path", "--strings-in-hex=all", "--string-limit=16777216",
		"--trace=" + systemCalls, "--status=successful", "--signal=none", "--quiet=all", "--output=" + trace.Name(), "--", program,
	}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s under strace: %w\n%s", program, err, out)
	}
	r := recorder{folder: filepath.Clean(folder), disk: newDisk(), last: rootID, positions: map[string]int64{}}
	if err := readCalls(trace, r.record); err != nil {
		return nil, err
	}
	return &Recording{ops: r.ops}, nil
}

// recorder turns system calls into changes.
type recorder struct {
	folder string
	ops    []op
	disk   *disk // as it is now
	last   fileID
	// positions has the file position of each descriptor.
	positions map[string]int64
}

// errUnknown means that a call changes files in a way that the model does not support.
var errUnknown = errors.New("the model of a disk does not support this call")

func (r *recorder) record(c call) error {
	switch c.name {
	case "openat":
		return r.open(c)
	case "read", "write", "pwrite64", "lseek", "ftruncate", "fallocate", "fchmod", "fsync", "fdatasync":
		return r.recordDescriptor(c)
	case "renameat", "renameat2", "linkat":
		return r.recordNames(c)
	case "symlinkat":
		return r.recordLink(c)
	case "mkdirat", "unlinkat":
		return r.recordName(c)
	case "mmap":
		return r.recordMapping(c)
	case "ioctl":
		return nil // recorded programs use ioctl only for terminals
	}
	if c.mentions(r.folder) {
		return errUnknown
	}
	return nil
}

// below returns a path relative to the folder.
func (r *recorder) below(path string) (string, bool) {
	if path == r.folder {
		return "", true
	}
	return strings.CutPrefix(path, r.folder+"/")
}

// resolve returns the folder and the name of a path that is relative to a descriptor.
func (r *recorder) resolve(c call, n int) (folder fileID, name string, ok bool) {
	path := c.text(n + 1)
	if !filepath.IsAbs(path) {
		_, base := c.descriptor(n)
		path = filepath.Join(base, path)
	}
	path, ok = r.below(filepath.Clean(path))
	if !ok || path == "" {
		return 0, "", false
	}
	return r.disk.findFile(filepath.Dir(path)), filepath.Base(path), true
}

func (r *recorder) add(o op) {
	r.ops = append(r.ops, o)
	if o.isMkdir { // apply only sets the name
		r.disk.folders[o.entries[0].file] = map[string]fileID{}
	}
	r.disk.apply(o)
}

func (r *recorder) newFile() fileID { r.last++; return r.last }

func (r *recorder) open(c call) error {
	folder, name, ok := r.resolve(c, 0)
	if !ok {
		return nil
	}
	fd, flags := fmt.Sprint(c.result), c.args[2]
	if strings.Contains(flags, "O_TMPFILE") {
		return errUnknown
	}
	file := r.disk.folders[folder][name]
	if file == 0 && strings.Contains(flags, "O_CREAT") {
		file = r.newFile()
		r.add(op{kind: opEntries, entries: []entry{{folder, name, file}}, text: "creation of " + name})
	} else if strings.Contains(flags, "O_TRUNC") && r.disk.files[file].size > 0 {
		r.add(op{kind: opTruncate, file: file, text: "truncation of " + name})
	}
	r.positions[fd] = 0
	if strings.Contains(flags, "O_APPEND") {
		r.positions[fd] = r.disk.files[file].size // no other process appends
	}
	return nil
}

// recordDescriptor records a call on an open file. Calls on a removed file change file 0,
// which is never checked, since it has no name.
func (r *recorder) recordDescriptor(c call) error {
	fd, path := c.descriptor(0)
	name, ok := r.below(path)
	if !ok {
		if c.name == "write" && path == os.DevNull && strings.HasPrefix(c.text(1), markPrefix) {
			r.add(op{kind: opMark, text: strings.TrimPrefix(c.text(1), markPrefix)})
		}
		return nil
	}
	file := r.disk.findFile(name)
	switch c.name {
	case "read":
		r.positions[fd] += c.result
	case "lseek":
		r.positions[fd] = c.result
	case "write":
		r.add(op{kind: opWrite, file: file, offset: r.positions[fd], data: []byte(c.text(1))[:c.result], text: fmt.Sprintf("%d bytes of %s", c.result, name)})
		r.positions[fd] += c.result
	case "pwrite64":
		offset, err := c.number(3)
		if err != nil {
			return err
		}
		r.add(op{kind: opWrite, file: file, offset: offset, data: []byte(c.text(1))[:c.result], text: fmt.Sprintf("%d bytes of %s at %d", c.result, name, offset)})
	case "ftruncate":
		size, err := c.number(1)
		if err != nil {
			return err
		}
		r.add(op{kind: opTruncate, file: file, size: size, text: fmt.Sprintf("the size %d of %s", size, name)})
	case "fallocate":
		return r.recordAllocation(c, file, name)
	case "fchmod":
		mode, err := c.number(1)
		if err != nil {
			return err
		}
		r.add(op{kind: opMode, file: file, mode: os.FileMode(mode), text: fmt.Sprintf("the mode %o of %s", mode, name)}) //nolint:gosec // a mode
	default:
		r.add(op{kind: opSync, file: file, text: "sync of " + name})
	}
	return nil
}

// recordAllocation records fallocate. With mode 0 the file grows to the end of the allocated range; with other modes
// its size stays.
func (r *recorder) recordAllocation(c call, file fileID, name string) error {
	offset, err := c.number(2)
	length, err2 := c.number(3)
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	switch c.args[1] {
	case "0":
		size := max(offset+length, r.disk.files[file].size)
		r.add(op{kind: opTruncate, file: file, size: size, text: fmt.Sprintf("room up to %d in %s", size, name)})
		return nil
	case "FALLOC_FL_KEEP_SIZE":
		return nil
	case "FALLOC_FL_KEEP_SIZE|FALLOC_FL_PUNCH_HOLE":
		hole := make([]byte, min(length, r.disk.files[file].size-offset))
		r.add(op{kind: opWrite, file: file, offset: offset, data: hole, text: fmt.Sprintf("a hole of %d bytes in %s at %d", length, name, offset)})
		return nil
	}
	return errUnknown
}

// recordNames records a call with two paths.
func (r *recorder) recordNames(c call) error {
	from, fromName, fromBelow := r.resolve(c, 0)
	to, toName, toBelow := r.resolve(c, 2)
	if fromBelow != toBelow || c.name == "renameat2" {
		return errUnknown
	}
	if !fromBelow {
		return nil
	}
	o := op{kind: opEntries, text: fmt.Sprintf("%s of %s to %s", c.name, fromName, toName)}
	o.entries = []entry{{to, toName, r.disk.folders[from][fromName]}}
	if c.name != "linkat" {
		o.entries = append(o.entries, entry{from, fromName, 0})
	}
	r.add(o)
	return nil
}

// recordName records a call with one path.
func (r *recorder) recordName(c call) error {
	folder, name, ok := r.resolve(c, 0)
	if !ok {
		return nil
	}
	if c.name == "mkdirat" {
		r.add(op{kind: opEntries, isMkdir: true, entries: []entry{{folder, name, r.newFile()}}, text: "creation of folder " + name})
		return nil
	}
	r.add(op{kind: opEntries, entries: []entry{{folder, name, 0}}, text: "removal of " + name})
	return nil
}

// recordLink records a symbolic link. Its target becomes durable together with its name.
func (r *recorder) recordLink(c call) error {
	if folder, name, ok := r.resolve(c, 1); ok {
		r.add(op{kind: opEntries, target: c.text(0), entries: []entry{{folder, name, r.newFile()}}, text: "creation of link " + name})
	}
	return nil
}

// recordMapping rejects shared mappings by which a file can be written.
func (r *recorder) recordMapping(c call) error {
	_, path := c.descriptor(4)
	if _, ok := r.below(path); ok && strings.Contains(c.args[2], "PROT_WRITE") && strings.Contains(c.args[3], "MAP_SHARED") {
		return errUnknown
	}
	return nil
}
