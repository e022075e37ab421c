// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program show prints the files of the root file system, in the format that filetree.Parse reads, without
// other mounted file systems. With any argument it sleeps instead, until it is killed.
package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/framework/filetree"
)

// mountPoint is where the root is mounted once more. Both containers and machines have /dev/shm, which
// is not part of the image.
const mountPoint = "/dev/shm/root"

func main() {
	if len(os.Args) > 1 {
		time.Sleep(math.MaxInt64)
	}
	if err := show(); err != nil {
		fmt.Fprintf(os.Stderr, "show: %v\n", err)
		os.Exit(1)
	}
}

func show() error {
	// A bind mount of the root does not include the file systems that are mounted below it.
	if err := errors.Join(os.MkdirAll(mountPoint, 0o700), unix.Mount("/", mountPoint, "", unix.MS_BIND, "")); err != nil {
		return err
	}
	tree, err := filetree.WalkFolder(mountPoint)
	return errors.Join(err, tree.Write(os.Stdout), unix.Unmount(mountPoint, unix.MNT_DETACH))
}
