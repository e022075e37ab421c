// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package catalogue has names for cloud images: where an image is, how its publisher
// publishes its checksum, who logs in, and how large its disk must be. It has only data,
// which clients use too; package image fetches the image that a name stands for.
//
// Start with Shipped and Catalogue.Find. images.yaml has the names that every Drover knows,
// and checksums.go reads the checksums that publishers publish.
package catalogue

import (
	"bytes"
	"cmp"
	_ "embed" // for images.yaml
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// Limits of a file.
const (
	maxFileSize = 1 << 20
	maxImages   = 1000
)

// Image is an image and its name.
type Image struct {
	// Name follows cloud:// in a source, as in debian/13.
	Name string `json:"name"`
	// Architecture is amd64, or another of Go's names.
	Architecture string `json:"architecture"`
	// URL is the image's address.
	URL       string    `json:"url"`
	Checksums Checksums `json:"checksums"`
	// User is the user who may log in with the keys that cloud-init gets.
	User string `json:"user"`
	// MinDisk is the size of the smallest disk that may be made of the image, as a quantity. The
	// image itself shows exactly how much it needs.
	MinDisk string `json:"minDisk"`

	minDiskBytes int64
}

// MinDiskBytes returns the size of the smallest disk that may be made of the image.
func (i Image) MinDiskBytes() int64 { return i.minDiskBytes }

// File returns the name of the image's file.
func (i Image) File() string {
	parsed, err := url.Parse(i.URL)
	if err != nil {
		return "" // Check has refused it
	}
	return path.Base(parsed.Path)
}

// Catalogue has images by name and architecture.
type Catalogue struct{ images []Image }

//go:embed images.yaml
var shippedFile []byte

// Shipped returns the catalogue that every Drover has.
var Shipped = sync.OnceValue(func() *Catalogue {
	images, err := parse(shippedFile)
	if err != nil {
		panic("images.yaml: " + err.Error()) // TestShipped reads it
	}
	return &Catalogue{images}
})

// Open returns the images of a file, and those of the shipped catalogue whose name and architecture
// the file does not have. Without a path it returns the shipped catalogue.
func Open(path string) (*Catalogue, error) {
	if path == "" {
		return Shipped(), nil
	}
	content, err := readFile(path)
	if err != nil {
		return nil, err
	}
	images, err := parse(content)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, i := range Shipped().images {
		if !slices.ContainsFunc(images, i.isSame) {
			images = append(images, i)
		}
	}
	return &Catalogue{images}, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the operator's choice
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err == nil && len(content) > maxFileSize {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFileSize)
	}
	return content, err
}

func (i Image) isSame(other Image) bool {
	return i.Name == other.Name && i.Architecture == other.Architecture
}

// Find returns the image that a name stands for.
func (c *Catalogue) Find(name, architecture string) (Image, error) {
	var others []string
	for _, i := range c.images {
		switch {
		case i.Name != name:
		case i.Architecture == architecture:
			return i, nil
		default:
			others = append(others, i.Architecture)
		}
	}
	if len(others) > 0 {
		return Image{}, fmt.Errorf("the image is for %s, and machines here are %s", strings.Join(others, ", "), architecture)
	}
	return Image{}, fmt.Errorf("there is no image of that name: the names are %s", c.describeNames(architecture))
}

// User returns the user of an image for any architecture, empty if there is none of that name.
func (c *Catalogue) User(name string) string {
	n := slices.IndexFunc(c.images, func(i Image) bool { return i.Name == name })
	if n < 0 {
		return ""
	}
	return c.images[n].User
}

// shownNames is how many names an error lists.
const shownNames = 40

func (c *Catalogue) describeNames(architecture string) string {
	var names []string
	for _, i := range c.images {
		if i.Architecture == architecture {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	if more := len(names) - shownNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shownNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

// parse reads and checks a file. Errors name the image and the field.
func parse(content []byte) ([]Image, error) {
	var file struct {
		Images []json.RawMessage `json:"images"`
	}
	body, err := yaml.YAMLToJSONStrict(content)
	if err == nil {
		err = decode(body, &file)
	}
	if err != nil {
		return nil, err
	}
	if n := len(file.Images); n == 0 || n > maxImages {
		return nil, fmt.Errorf("images has %d entries: it must have 1 to %d", n, maxImages)
	}
	images := make([]Image, len(file.Images))
	for n, body := range file.Images {
		i := &images[n]
		err := decode(body, i)
		if err == nil {
			err = i.check()
		}
		if err != nil {
			return nil, fmt.Errorf("images[%d] (%s): %w", n, cmp.Or(i.Name, "without a name"), err)
		}
		if slices.ContainsFunc(images[:n], i.isSame) {
			return nil, fmt.Errorf("images[%d] (%s): there is one of that name for %s before it", n, i.Name, i.Architecture)
		}
	}
	return images, nil
}

// decode reads JSON that has known fields only.
func decode(body []byte, result any) error {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	return decoder.Decode(result)
}

var (
	namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?(/[a-z0-9]([a-z0-9._-]*[a-z0-9])?)*$`)
	userPattern = regexp.MustCompile(`^[a-z_][a-z0-9_-]*$`)
)

// maxName is the maximum length of the name of an image, and of a user.
const maxName = 100

// check returns an error that names the invalid field, and sets minDiskBytes.
func (i *Image) check() error {
	size, err := resource.ParseQuantity(i.MinDisk)
	if err != nil || size.Value() <= 0 {
		return fmt.Errorf("minDisk is %q: it must be a quantity above 0, such as 3Gi", i.MinDisk)
	}
	i.minDiskBytes = size.Value()
	switch {
	case len(i.Name) > maxName || !namePattern.MatchString(i.Name):
		return fmt.Errorf("name is %.100q: it must be up to %d lowercase letters, digits, dots, dashes and slashes, such as debian/13", i.Name, maxName)
	case i.Architecture != "amd64" && i.Architecture != "arm64":
		return fmt.Errorf("architecture is %q: it must be amd64 or arm64", i.Architecture)
	case len(i.User) > maxName || !userPattern.MatchString(i.User):
		return fmt.Errorf("user is %.100q: it must be the name of a user", i.User)
	}
	if err := checkURL("url", i.URL); err != nil {
		return err
	}
	return i.Checksums.check()
}

// checkURL refuses an address that does not identify one file, and an address without TLS, with which a
// server proves its identity.
func checkURL(field, text string) error {
	parsed, err := url.Parse(text)
	if err != nil || parsed.Scheme != "https" || parsed.Host == "" || parsed.User != nil || parsed.RawQuery != "" || parsed.Fragment != "" || strings.HasSuffix(parsed.Path, "/") || parsed.Path == "" {
		return fmt.Errorf("%s is %.300q: it must be the https:// address of a file, without a user, a query or a fragment", field, text)
	}
	return nil
}
