// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program registry serves one container image, of an archive as docker save writes one, as a registry on this
// host, by plain HTTP, until it is ended. It prints the image's reference. The demo starts it.
//
//	go run ./hack/registry FILE NAME:TAG
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: registry FILE NAME:TAG")
		os.Exit(2)
	}
	if err := serve(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}

// serve starts the registry, and pushes the image to it.
func serve(file, tag string) error {
	image, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // at once
	if err != nil {
		return err
	}
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0))), ReadHeaderTimeout: time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	reference, err := name.NewTag(listener.Addr().String() + "/" + tag)
	if err == nil {
		err = remote.Write(reference, image)
	}
	if err != nil {
		return errors.Join(err, server.Close())
	}
	fmt.Println(reference)
	return <-ended
}
