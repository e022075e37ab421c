// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// answersWithin is how long a server may take until it begins to answer.
const answersWithin = 30 * time.Second

// platform is the one that machines have.
var platform = v1.Platform{OS: "linux", Architecture: "amd64"}

func openHTTP(ctx context.Context, url string) (io.ReadCloser, int64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = answersWithin
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return nil, 0, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, 0, fmt.Errorf("the server answered %s", answer.Status)
	}
	return answer.Body, max(answer.ContentLength, 0), nil
}

// diskFolder is where an image for machines has its disk, as container disks do.
const diskFolder = "disk"

// openOCI finds the disk in an image of a registry.
func openOCI(ctx context.Context, reference string) (io.ReadCloser, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform))
	if err != nil {
		return nil, err
	}
	content := mutate.Extract(image)
	disk, err := findDisk(tar.NewReader(content))
	if err != nil {
		return nil, errors.Join(err, content.Close())
	}
	return &inArchive{disk, content}, nil
}

// inArchive is one file of an archive. That there is no other is checked at its
// end.
type inArchive struct {
	files *tar.Reader
	io.Closer
}

func (a *inArchive) Read(p []byte) (int, error) {
	n, err := a.files.Read(p)
	if errors.Is(err, io.EOF) {
		if _, other := findDisk(a.files); other == nil {
			err = fmt.Errorf("there is more than one file in /%s: it must hold one disk", diskFolder)
		}
	}
	return n, err
}

var errNoDisk = fmt.Errorf("there is no disk in /%s of the image", diskFolder)

// findDisk goes to the next disk.
func findDisk(files *tar.Reader) (*tar.Reader, error) {
	for {
		entry, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil, errNoDisk
		}
		if err != nil {
			return nil, err
		}
		dir, base := path.Split(strings.TrimPrefix(path.Clean("/"+entry.Name), "/"))
		if entry.Typeflag == tar.TypeReg && dir == diskFolder+"/" && !strings.HasPrefix(base, ".") {
			return files, nil
		}
	}
}
