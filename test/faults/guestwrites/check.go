// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guestwrites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/hack/guest/blocks"
	"cloudnative.tw/drover/internal/machine/launch"
)

// imageTimeout bounds a run of qemu-img.
const imageTimeout = time.Minute

// diskName returns the file of a disk that is looked at.
func diskName(disk int) string { return fmt.Sprintf("disk-%d.qcow2", disk) }

// check checks the disks that a power cut has left, by qemu-img and by the guest's blocks.
func (s state) check(ctx context.Context, dir string) error {
	if err := s.write(dir); err != nil {
		return err
	}
	return checkDisks(ctx, dir, s.shown)
}

// write writes the disks to a folder.
func (s state) write(dir string) error {
	for disk, content := range s.disks {
		if err := os.WriteFile(filepath.Join(dir, diskName(disk)), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// lostError says what is wrong with disks.
type lostError struct{ error }

// judgeExit returns a program's error as a lostError if the program itself exited with it. One that did
// not run, or was killed when its time was over, says nothing about the disks.
func judgeExit(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !exit.Exited() {
		return err
	}
	return lostError{err}
}

// checkDisks checks the disks in a folder. A disk that is empty was not made yet.
func checkDisks(ctx context.Context, dir string, shown claims) error {
	for disk, synced := range shown.Synced {
		path := filepath.Join(dir, diskName(disk))
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Size() == 0 && synced == 0 {
			continue
		}
		if err := checkDisk(ctx, path, synced, shown.GrownAt[disk]); err != nil {
			return fmt.Errorf("disk %d, of which the guest had synced %d rounds: %w", disk, synced, err)
		}
	}
	return nil
}

// checkDisk checks a disk: its format, and the blocks of the rounds that the guest had synced.
func checkDisk(ctx context.Context, path string, synced, grownAt uint64) error {
	const leaks = 3        // which a power cut may leave
	disk := launch.Object{ // without the image below, which lacks blocks and may be gone
		"driver": "qcow2", "backing": nil, "file": launch.Object{"driver": "file", "filename": path},
	}
	name := "json:" + disk.Text()
	out, err := runQEMUImg(ctx, "check", name)
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != leaks) {
		return judgeExit(fmt.Errorf("qemu-img check: %w: %s", err, out))
	}
	raw := path + ".raw"
	if out, err := runQEMUImg(ctx, "convert", "-O", "raw", name, raw); err != nil {
		return judgeExit(fmt.Errorf("qemu-img convert: %w: %s", err, out))
	}
	f, err := os.Open(raw)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(raw)) }()
	for _, place := range blocks.Required(synced, grownAt) {
		data := make([]byte, blocks.Size)
		if _, err := f.ReadAt(data, place.Offset()); err != nil {
			return lostError{err}
		}
		if b, ok := blocks.Decode(data); !ok || b.Count != place.Count || int(b.Area) != place.Area {
			return lostError{fmt.Errorf("round %d is not in area %d any more, but %+v, whole: %t", place.Count, place.Area, b, ok)}
		}
	}
	return nil
}

func runQEMUImg(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-img", args...).CombinedOutput()
	return string(out), err
}
