// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"cloudnative.tw/drover/test/assert"
)

// NewRegistry starts a registry of images and returns its host. Unless around is nil, what it returns answers the
// requests.
func NewRegistry(t testing.TB, around func(http.Handler) http.Handler) (host string) {
	t.Helper()
	server := StartRegistry(around)
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// StartRegistry starts the registry of NewRegistry. The caller must Close it.
func StartRegistry(around func(http.Handler) http.Handler) *httptest.Server {
	handler := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if around != nil {
		handler = around(handler)
	}
	return httptest.NewServer(handler)
}

// StartRegistryOf starts a registry that has one image, and returns the image's reference too. The caller must Close it.
func StartRegistryOf(image v1.Image) (server *httptest.Server, reference string, err error) {
	server = StartRegistry(nil)
	reference = server.Listener.Addr().String() + "/image:1"
	if err := writeImage(reference, image); err != nil {
		server.Close()
		return nil, "", err
	}
	return server, reference, nil
}

// PushImage gives a reference an image.
func PushImage(t testing.TB, reference string, image v1.Image) {
	t.Helper()
	assert.NoError(t, writeImage(reference, image))
}

func writeImage(reference string, image v1.Image) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return err
	}
	return remote.Write(ref, image)
}

// TarOf returns an archive of one file.
func TarOf(t testing.TB, path string, content []byte) []byte {
	t.Helper()
	archive, err := MakeTar(path, content)
	assert.NoError(t, err)
	return archive
}

// MakeTar makes the archive of TarOf.
func MakeTar(path string, content []byte) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o555, Size: int64(len(content))})
	_, writeErr := w.Write(content)
	return archive.Bytes(), errors.Join(err, writeErr, w.Close())
}
