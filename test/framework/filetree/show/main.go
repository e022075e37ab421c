// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program show prints the files of the root that it runs in, as filetree.Parse reads them, without
// what is mounted there. With any argument it does nothing until it is ended.
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

// place is where the root is mounted once more. A container and a machine of an image both have
// the folder above, which is not of the image.
const place = "/dev/shm/root"

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
	// A new mount of the root does not have those that are below it.
	if err := errors.Join(os.MkdirAll(place, 0o700), unix.Mount("/", place, "", unix.MS_BIND, "")); err != nil {
		return err
	}
	tree, err := filetree.WalkFolder(place)
	return errors.Join(err, tree.Write(os.Stdout), unix.Unmount(place, unix.MNT_DETACH))
}
