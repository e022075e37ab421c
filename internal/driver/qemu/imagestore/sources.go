// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
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
	answer, err := (&http.Client{Transport: transport, CheckRedirect: checkRedirect}).Do(request)
	if err != nil {
		return nil, 0, err
	}
	if answer.StatusCode != http.StatusOK {
		_ = answer.Body.Close()
		return nil, 0, fmt.Errorf("the server answered %s", answer.Status)
	}
	return answer.Body, max(answer.ContentLength, 0), nil
}

// maxRedirects is how many redirects lead to an image at most.
const maxRedirects = 10

// checkRedirect refuses to leave https, by which alone nobody on the way can
// change what is sent.
func checkRedirect(next *http.Request, via []*http.Request) error {
	last := via[len(via)-1].URL
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("it was redirected more than %d times", maxRedirects)
	case last.Scheme == "https" && next.URL.Scheme != "https":
		return fmt.Errorf("%s redirects to %s: from https:// it may only go on to https://", last.Redacted(), next.URL.Redacted())
	}
	return nil
}

// openOCI finds the disk in an image of a registry. Alive is called whenever
// something of the image comes, of the disk or of what has to be read before and
// after it.
func openOCI(ctx context.Context, reference string, alive func()) (io.ReadCloser, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	image, err := remote.Image(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithPlatform(platform),
		remote.WithTransport(&heardTransport{remote.DefaultTransport, alive}))
	if err != nil {
		return nil, err
	}
	return openArchive(image)
}

// heardTransport tells of all that comes.
type heardTransport struct {
	http.RoundTripper

	alive func()
}

// RoundTrip implements http.RoundTripper.
func (h *heardTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := h.RoundTripper.RoundTrip(request)
	if err == nil {
		answer.Body = &heardBody{answer.Body, h.alive}
	}
	return answer, err
}

type heardBody struct {
	io.ReadCloser

	alive func()
}

func (h *heardBody) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	if n > 0 {
		h.alive()
	}
	return n, err
}
