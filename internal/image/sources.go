// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/klauspost/compress/zstd"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image/egress"
)

// DefaultMaxSize is how many bytes an image may have if the operator sets no other limit.
const DefaultMaxSize = 32 << 30

// Policy is what the operator allows for fetches. The zero value allows public addresses,
// and registries by TLS only.
type Policy struct {
	// Hosts are names and CIDRs of hosts that may be contacted although their addresses are
	// not public.
	Hosts []string
	// PlainHTTP are registries, as sources name them, that are contacted without TLS, and
	// without logins.
	PlainHTTP []string
	// MaxSize is how many bytes an image may have, its layers decompressed; zero
	// means DefaultMaxSize.
	MaxSize int64
}

// Sources are where images are fetched from.
type Sources struct {
	client    *egress.Client
	plainHTTP []string
	maxSize   int64
}

// NewSources returns the sources that a policy allows.
func NewSources(p Policy) (*Sources, error) {
	hosts, err := egress.ParseHosts(p.Hosts)
	if err != nil {
		return nil, fmt.Errorf("--image-hosts: %w", err)
	}
	for _, registry := range p.PlainHTTP {
		if _, err := name.NewRegistry(registry, name.StrictValidation); err != nil || registry != strings.ToLower(registry) {
			return nil, fmt.Errorf("--image-plain-http-registries has %q: each must be the host of a registry in small letters, with the port if it has one, such as localhost:5000", registry)
		}
	}
	if p.MaxSize < 0 {
		return nil, fmt.Errorf("--image-max-size is %d: it must be more than 0", p.MaxSize)
	}
	if p.MaxSize == 0 {
		p.MaxSize = DefaultMaxSize
	}
	return &Sources{client: egress.New(hosts), plainHTTP: p.PlainHTTP, maxSize: p.MaxSize}, nil
}

// IsUnchecked reports whether the content of an image is up to the server, or to anyone
// who can change what is sent on the way. A registry is queried by digest, which over TLS
// only the registry itself can choose.
func (s *Sources) IsUnchecked(i driver.Image) bool {
	reference, isOCI := strings.CutPrefix(i.Source, ociScheme)
	if i.Checksum != "" || !IsRemote(i.Source) {
		return false
	}
	if !isOCI {
		return true
	}
	ref, err := name.ParseReference(reference)
	if err != nil {
		return false // nothing is fetched
	}
	_, byDigest := ref.(name.Digest)
	return !byDigest && s.isPlain(ref)
}

// isPlain reports whether a registry is contacted without TLS.
func (s *Sources) isPlain(ref name.Reference) bool {
	return slices.Contains(s.plainHTTP, strings.ToLower(ref.Context().RegistryStr()))
}

// copyHTTP copies the content that a web server has.
func (s *Sources) copyHTTP(ctx context.Context, source string, a *attempt) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, source, nil)
	if err != nil {
		return final("it is no valid URL")
	}
	answer, err := s.client.Web(a.fetch.MarkAlive).RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return egress.StatusError(answer.StatusCode)
	}
	if err := a.begin(versionOf(answer), max(answer.ContentLength, 0)); err != nil {
		return err
	}
	n, err := io.Copy(a, answer.Body)
	if err == nil && a.total > 0 && n != a.total {
		return egress.Errorf("it ended after %d of %d bytes", n, a.total)
	}
	return err
}

// versionOf returns a web server's version of its content, or nothing.
func versionOf(answer *http.Response) string {
	tag, at := answer.Header.Get("ETag"), answer.Header.Get("Last-Modified")
	if tag == "" && at == "" {
		return ""
	}
	return fmt.Sprint(tag, " ", at, " ", answer.ContentLength)
}

// platform is the platform of machines.
var platform = v1.Platform{OS: "linux", Architecture: "amd64"}

// copyOCI copies the disk in an image of a registry.
func (s *Sources) copyOCI(ctx context.Context, reference string, a *attempt) error {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return final("it is no reference of an image: it must be oci://registry/name:tag or oci://registry/name@sha256:...")
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithPlatform(platform),
		remote.WithTransport(s.client.Registry(s.isPlain(ref), a.fetch.MarkAlive)),
	}
	if s.isPlain(ref) {
		// This lets the library fall back to plain HTTP. It has no login to send.
		ref, err = name.ParseReference(reference, name.Insecure)
	} else {
		options = append(options, remote.WithAuthFromKeychain(logins{}))
	}
	if err != nil {
		return err
	}
	image, err := remote.Image(ref, options...)
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	if err := a.begin(digest.String(), 0); err != nil {
		return err
	}
	return copyDisk(image, a, s.maxSize)
}

// logins are the logins of the Docker configuration. An error does not say why they
// cannot be read: what a helper printed may hold one.
type logins struct{}

// Resolve implements authn.Keychain.
func (logins) Resolve(target authn.Resource) (authn.Authenticator, error) {
	found, err := authn.DefaultKeychain.Resolve(target)
	if err != nil {
		return nil, egress.Errorf("the logins of registries cannot be read: config.json of the Docker configuration is broken, or a helper that it names fails")
	}
	return found, nil
}

// contentError says why fetched content is of no use. Fetching the same content again
// changes nothing.
type contentError struct{ error }

func (c *contentError) Unwrap() error { return c.error }

// useless returns an error for content that the server may change.
func useless(format string, args ...any) error {
	return &contentError{driver.Errorf(driver.ErrRetry, format, args...)}
}

// final returns an error that only another spec, or another flag, can resolve.
func final(format string, args ...any) error {
	return &contentError{driver.Errorf(driver.ErrInvalid, format, args...)}
}

// explain says why a fetch failed, in Drover's own words only.
func explain(err error) error {
	content, is := errors.AsType[*contentError](err)
	switch {
	case is:
		return content
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		return useless("a layer of the image needs more than %d bytes of memory to be decompressed: compress it without --long or --ultra", maxWindow)
	}
	return egress.Explain(err)
}
